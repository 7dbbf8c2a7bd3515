#include "tests/testing/crowd.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "kernels/base/status_macros.h"

namespace runahead::testing {
namespace {

constexpr int kOthers = 1024;
constexpr int kRenewMillis = 1;
// A port whose backlog is full lets nobody in, and says so to nobody.
constexpr auto kPatience = std::chrono::seconds(3);

// Whether the other side has neither closed the connection nor refused it.
bool IsOpen(int socket) {
  char byte;
  const ssize_t got = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got > 0 || (got < 0 && errno == EAGAIN);
}

}  // namespace

int RaiseOwnLimit() {
  rlimit limits{};
  getrlimit(RLIMIT_NOFILE, &limits);
  limits.rlim_cur = limits.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limits);
  return static_cast<int>(limits.rlim_max);
}

Crowd::Crowd(const std::string& address, int count) {
  const size_t colon = address.rfind(':');
  to_.sin_family = AF_INET;
  to_.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  RUNAHEAD_CHECK(inet_pton(AF_INET, address.substr(0, colon).c_str(), &to_.sin_addr) == 1);
  for (int i = 0; i < count; ++i) sockets_.push_back(Connect());
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (const int socket : sockets_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd polled{socket, POLLOUT, 0};
    poll(&polled, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
  }
}

int Crowd::Connect() const {
  const int low = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int high = fcntl(low, F_DUPFD_CLOEXEC, kOthers);
  RUNAHEAD_CHECK(high >= 0);
  close(low);
  (void)connect(high, reinterpret_cast<const sockaddr*>(&to_), sizeof(to_));
  return high;
}

Crowd::~Crowd() {
  for (const int socket : sockets_) close(socket);
}

void Crowd::Say(const std::string& text) const {
  for (const int socket : sockets_) (void)send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

int Crowd::Open() const {
  return static_cast<int>(std::count_if(sockets_.begin(), sockets_.end(), IsOpen));
}

void Crowd::Renew() {
  for (int& socket : sockets_) {
    if (IsOpen(socket)) continue;
    close(socket);
    socket = Connect();
  }
}

StandingCrowd::StandingCrowd(const std::string& address, int count)
    : crowd_(address, count), thread_([this](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          crowd_.Renew();
          poll(nullptr, 0, kRenewMillis);
        }
      }) {}

}  // namespace runahead::testing
