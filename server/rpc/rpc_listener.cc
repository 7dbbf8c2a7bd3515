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

#include "kernels/base/monotonic.h"
#include "kernels/base/thread_name.h"
#include "server/base/descriptor_limit.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// How old the number of open connections may be: where there are too many, and for the metric.
constexpr absl::Duration kSweepWhenFull = absl::Milliseconds(20);
constexpr absl::Duration kSweepAnyway = absl::Seconds(1);
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Accepted before the other listeners have their turn.
constexpr int kBatch = 64;

// As gRPC tunes what it accepts itself.
void Tune(const Descriptor& connection, const RpcListenerOptions& options) {
  const int on = 1, millis = static_cast<int>(absl::ToInt64Milliseconds(options.lost_after));
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(connection.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &millis, sizeof(millis));
  if (options.receive_buffer == 0) return;
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVBUF, &options.receive_buffer, sizeof(options.receive_buffer));
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
      accepted_(sockets_.sockets.size()),
      thread_([this] { Run(); }) {
  if (options_.metrics != nullptr) options_.metrics->limit.Set(most_);
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

Acceptance RpcListener::acceptance(size_t socket) const {
  MutexLock lock(mu_);
  return {.all = accepted_[socket], .expected = !expected_.has_value()};
}

void RpcListener::Run() {
  NameThread("port");
  for (;;) {
    WaitForConnections();
    {
      MutexLock lock(mu_);
      if (closing_) return;
    }
    if (MonotonicNow() - swept_at_ >= kSweepAnyway) Sweep();
    paused_ = false;
    for (size_t socket = 0; socket < sockets_.sockets.size(); ++socket) AcceptAll(socket);
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

void RpcListener::AcceptAll(size_t socket) {
  Descriptor& listener = sockets_.sockets[socket];
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
    Receive(**std::move(next), socket);
  }
}

void RpcListener::Receive(NewConnection connection, size_t socket) {
  const std::string address = PeerHost(connection.peer);
  if (!IsExpected(connection.peer, socket)) {
    if (const std::optional<ConnectionRefusal> why = WhyNot(connection.socket.get(), address))
      return Refuse(*why, address);
    open_.Add(connection.socket.get(), address);
  }
  Tune(connection.socket, options_);
  taker_(std::move(connection.socket), sockets_.sockets[socket]);
}

bool RpcListener::IsExpected(const SocketAddress& peer, size_t socket) {
  MutexLock lock(mu_);
  ++accepted_[socket];
  if (!expected_ || PortOf(expected_->storage) != PortOf(peer.storage) || PeerHost(*expected_) != PeerHost(peer)) {
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
  const std::optional<int64_t> closed = refused_.Happened();
  if (!closed.has_value()) return;
  Sweep();
  const char* const reason = why == ConnectionRefusal::kLimit     ? "there are as many as may be (max_connections)"
                             : why == ConnectionRefusal::kAddress ? "one address has three quarters of all"
                                                                  : "too few descriptors are left (ulimit -Hn)";
  LogWarning("port", FormatHostPort(sockets_.address), ": connections are closed as they come, the last one from ",
             address, ": ", reason, "; ", open_.count(), " are open, ", *closed,
             " were closed since this was said last");
}

void RpcListener::Sweep() {
  open_.Sweep();
  swept_at_ = MonotonicNow();
  if (options_.metrics != nullptr) options_.metrics->open.Set(open_.count());
}

}  // namespace runahead
