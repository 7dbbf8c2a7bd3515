#include "server/base/http_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

namespace runahead {
namespace {

// What scrapers and probes say is less than 1 KiB.
constexpr size_t kMaxRequest = 16 << 10;

}  // namespace

HttpConnection::HttpConnection(uint64_t id, Descriptor socket, std::string host, absl::Time until)
    : id_(id), socket_(std::move(socket)), host_(std::move(host)), until_(until) {}

short HttpConnection::events() const {
  if (state_ == State::kReading) return POLLIN;
  return state_ == State::kAnswering ? POLLOUT : 0;
}

void HttpConnection::Read() {
  std::array<char, 4096> bytes;
  while (state_ == State::kReading) {
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      state_ = State::kEnded;
      return;
    }
    const size_t looked_at = request_.size() < 3 ? 0 : request_.size() - 3;
    request_.append(bytes.data(), static_cast<size_t>(got));
    const size_t end = request_.find("\r\n\r\n", looked_at);
    if (end != std::string::npos) {
      request_.resize(end + 4);
      until_ = absl::InfiniteFuture();
      state_ = State::kAsked;
    } else if (request_.size() > kMaxRequest) {
      state_ = State::kEnded;
    }
  }
}

void HttpConnection::Answer(std::string answer, absl::Time until) {
  answer_ = std::move(answer);
  until_ = until;
  state_ = State::kAnswering;
  Write();
}

void HttpConnection::Write() {
  while (sent_ < answer_.size()) {
    const ssize_t wrote = send(socket_.get(), answer_.data() + sent_, answer_.size() - sent_, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) return;
    if (wrote <= 0) break;
    sent_ += static_cast<size_t>(wrote);
  }
  state_ = State::kEnded;
}

}  // namespace runahead
