#include "tests/testing/tcp_proxy.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {
namespace {

constexpr size_t kHeldBytes = 64 << 10;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

uint16_t PortOf(const std::string& address) {
  int port = 0;
  RUNAHEAD_CHECK(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  return static_cast<uint16_t>(port);
}

}  // namespace

TcpProxy::TcpProxy(const std::string& target) : target_port_(PortOf(target)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  RUNAHEAD_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(listener_, 16) == 0 &&
                 getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  RUNAHEAD_CHECK(pipe2(wake_, O_CLOEXEC | O_NONBLOCK) == 0);
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  thread_ = std::thread([this] { Run(); });
}

TcpProxy::~TcpProxy() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  Wake();
  thread_.join();
  for (const Way& way : ways_) close(way.from);
  for (const int fd : {listener_, wake_[0], wake_[1]}) close(fd);
}

void TcpProxy::Stall(bool stalled) {
  {
    MutexLock lock(mu_);
    stalled_ = stalled;
  }
  Wake();
}

void TcpProxy::Cut() {
  MutexLock lock(mu_);
  cut_ = true;
  Wake();
  ChangeWait wait("the connections are cut");
  while (cut_) {
    if (!wait.Next(mu_, cut_done_)) return;
  }
}

void TcpProxy::Wake() {
  RUNAHEAD_CHECK(write(wake_[1], "", 1) == 1);
}

void TcpProxy::Run() {
  for (;;) {
    bool stalled = false;
    {
      MutexLock lock(mu_);
      if (stop_) return;
      stalled = stalled_;
      while (cut_ && !ways_.empty()) Reset(0);
      cut_ = false;
      cut_done_.NotifyAll();
    }
    std::vector<pollfd> polled = {{wake_[0], POLLIN, 0}};
    if (!stalled) {
      polled.push_back({listener_, POLLIN, 0});
      for (const Way& way : ways_) {
        polled.push_back(way.held.empty() ? pollfd{way.from, POLLIN, 0} : pollfd{way.to, POLLOUT, 0});
      }
    }
    RUNAHEAD_CHECK(poll(polled.data(), polled.size(), -1) > 0 || errno == EINTR);
    char byte;
    if (polled[0].revents != 0 && read(wake_[0], &byte, 1) == 1) continue;
    for (size_t pair = ways_.size(); !stalled && pair > 0; pair -= 2) {  // the last first, for pairs drop out
      bool open = true;
      for (const size_t way : {pair - 2, pair - 1})
        open = open && (polled[2 + way].revents == 0 || Forward(ways_[way]));
      if (!open) End(pair - 2);
    }
    if (!stalled && polled[1].revents != 0) Accept();
  }
}

void TcpProxy::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(target_port_);
  if (client < 0 || connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      fcntl(server, F_SETFL, O_NONBLOCK) != 0) {
    for (const int fd : {client, server}) close(fd);
    return;
  }
  ways_.push_back({client, server, ""});
  ways_.push_back({server, client, ""});
}

void TcpProxy::Reset(size_t pair) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  for (const size_t way : {pair, pair + 1}) {
    setsockopt(ways_[way].from, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  End(pair);
}

void TcpProxy::End(size_t pair) {
  const auto first = ways_.begin() + static_cast<ptrdiff_t>(pair);
  for (const int fd : {first->from, first->to}) close(fd);
  ways_.erase(first, first + 2);
}

// False when the connection has ended.
bool TcpProxy::Forward(Way& way) {
  if (way.held.empty()) {
    way.held.resize(kHeldBytes);
    const ssize_t got = read(way.from, way.held.data(), way.held.size());
    way.held.resize(got > 0 ? static_cast<size_t>(got) : 0);
    if (got <= 0) return got < 0 && errno == EAGAIN;
  }
  const ssize_t sent = send(way.to, way.held.data(), way.held.size(), MSG_NOSIGNAL);
  if (sent > 0) way.held.erase(0, static_cast<size_t>(sent));
  return sent > 0 || errno == EAGAIN;
}

}  // namespace runahead::testing
