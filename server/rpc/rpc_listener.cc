#include "server/rpc/rpc_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/strip.h"
#include "kernels/base/monotonic.h"
#include "server/base/descriptor_limit.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// How old the number of open connections may be: where there are too many, and for the metric.
constexpr absl::Duration kSweepWhenFull = absl::Milliseconds(20);
constexpr absl::Duration kSweepAnyway = absl::Seconds(1);
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
constexpr absl::Duration kSayAgain = absl::Minutes(1);
// Accepted before the other listeners have their turn.
constexpr int kBatch = 64;

// IPv4 that arrives at an IPv6 socket is the same host as at one of its own.
std::string HostOf(const SocketAddress& address) {
  return std::string(absl::StripPrefix(NumericHost(*address.get()), "::ffff:"));
}

// As gRPC tunes what it accepts itself.
void Tune(const Descriptor& connection, absl::Duration lost_after) {
  const int on = 1, millis = static_cast<int>(absl::ToInt64Milliseconds(lost_after));
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(connection.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &millis, sizeof(millis));
}

// What is open now stays open; `newest` says how much that is.
int MostOf(int wanted, const Descriptor& newest) {
  return std::max(1, std::min(wanted, DescriptorLimit() - KeptDescriptors() - newest.get()));
}

}  // namespace

RpcListener::RpcListener(ListeningSockets sockets, const RpcListenerOptions& options, Taker taker)
    : sockets_(std::move(sockets)),
      options_(options),
      most_(MostOf(options.max_connections, sockets_.sockets.back())),
      taker_(std::move(taker)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Run(); }) {
  if (most_ < options.max_connections) {
    LogInfo("port", "takes up to ", most_, " connections: the limit of descriptors is ", DescriptorLimit(),
            " (ulimit -Hn), and ", KeptDescriptors(), " are kept for other use");
  }
}

RpcListener::~RpcListener() {
  Close();
}

void RpcListener::Close() {
  {
    MutexLock lock(mu_);
    if (std::exchange(closing_, true)) return;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
  sockets_.sockets.clear();
}

void RpcListener::ExpectFrom(const SocketAddress& own) {
  MutexLock lock(mu_);
  expected_ = own;
}

void RpcListener::Run() {
  for (;;) {
    WaitForConnections();
    {
      MutexLock lock(mu_);
      if (closing_) return;
    }
    if (MonotonicNow() - swept_at_ >= kSweepAnyway) Sweep();
    paused_ = false;
    for (Descriptor& listener : sockets_.sockets) AcceptAll(listener);
  }
}

void RpcListener::WaitForConnections() {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
  for (const Descriptor& listener : sockets_.sockets) {
    if (!paused_) polled.push_back({listener.get(), POLLIN, 0});  // one that has ended is -1, which poll skips
  }
  poll(polled.data(), polled.size(),
       static_cast<int>(absl::ToInt64Milliseconds(paused_ ? kAcceptPause : kSweepAnyway)));
}

void RpcListener::AcceptAll(Descriptor& listener) {
  for (int i = 0; i < kBatch && listener.valid(); ++i) {
    absl::StatusOr<std::optional<NewConnection>> next = accepter_.Next(listener);
    if (absl::IsResourceExhausted(next.status())) {
      paused_ = true;
      return;
    }
    if (!next.ok()) {
      LogError("port", FormatHostPort(sockets_.address), ": nobody can connect any more: ", next.status().message());
      listener.Close();
      return;
    }
    if (!next->has_value()) return;
    Receive(**std::move(next), listener);
  }
}

void RpcListener::Receive(NewConnection connection, const Descriptor& listener) {
  const std::string address = HostOf(connection.peer);
  if (!IsExpected(connection.peer)) {
    if (const std::optional<ConnectionRefusal> why = WhyNot(connection.socket.get(), address))
      return Refuse(*why, address);
    open_.Add(connection.socket.get(), address);
  }
  Tune(connection.socket, options_.lost_after);
  taker_(std::move(connection.socket), listener);
}

bool RpcListener::IsExpected(const SocketAddress& peer) {
  MutexLock lock(mu_);
  if (!expected_ || PortOf(expected_->storage) != PortOf(peer.storage) || HostOf(*expected_) != HostOf(peer)) {
    return false;
  }
  expected_.reset();
  return true;
}

std::optional<ConnectionRefusal> RpcListener::WhyNot(int socket, const std::string& address) {
  if (IsAmongTheLast(socket, KeptDescriptors())) return ConnectionRefusal::kDescriptors;
  const auto find = [&]() -> std::optional<ConnectionRefusal> {
    if (open_.count() >= most_) return ConnectionRefusal::kLimit;
    if (open_.CountOf(address) >= std::max(1, most_ * 3 / 4)) return ConnectionRefusal::kAddress;
    return std::nullopt;
  };
  const std::optional<ConnectionRefusal> why = find();
  if (!why || MonotonicNow() - swept_at_ < kSweepWhenFull) return why;
  Sweep();
  return find();
}

void RpcListener::Refuse(ConnectionRefusal why, const std::string& address) {
  if (options_.metrics != nullptr) options_.metrics->refused(why).Increment();
  ++unsaid_;
  const Time now = MonotonicNow();
  if (now - said_at_ < kSayAgain) return;
  Sweep();
  const char* const reason = why == ConnectionRefusal::kLimit     ? "there are as many as may be (max_connections)"
                             : why == ConnectionRefusal::kAddress ? "one address has three quarters of all"
                                                                  : "too few descriptors are left (ulimit -Hn)";
  LogWarning("port", FormatHostPort(sockets_.address), ": connections are closed as they come, the last one from ",
             address, ": ", reason, "; ", open_.count(), " are open, ", std::exchange(unsaid_, 0),
             " were closed since this was said last");
  said_at_ = now;
}

void RpcListener::Sweep() {
  open_.Sweep();
  swept_at_ = MonotonicNow();
  if (options_.metrics != nullptr) options_.metrics->open.Set(open_.count());
}

}  // namespace runahead
