// Takes connections for gRPC, and takes no more than the process can bear.
//
// gRPC 1.51 stops listening for good when it is once left without a descriptor. So it listens at nothing: we do, and
// give it what we have accepted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/accepter.h"
#include "server/base/connection_metrics.h"
#include "server/base/listening_sockets.h"
#include "server/base/rare_line.h"
#include "server/rpc/open_connections.h"
#include "server/rpc/port_probe.h"

namespace runahead {

struct RpcListenerOptions {
  // How many may be open; fewer where the limit of descriptors does not allow them. Of one address three quarters.
  int max_connections = 0;
  // How long the peer's host may leave bytes unacknowledged.
  absl::Duration lost_after;
  const ConnectionMetrics* metrics = nullptr;  // null: nothing is counted; else it must outlive this
  int receive_buffer = 0;  // bytes that the kernel keeps of a connection until they are read; 0: as many as it likes
};

// A connection for which there is no room is closed at once, so that none waits behind it: its client tries again
// later, or elsewhere. Thread-safe.
class RpcListener {
 public:
  // The new connection is the taker's; called on the listener's thread.
  using Taker = std::function<void(Descriptor connection, const Descriptor& listener)>;

  RpcListener(ListeningSockets sockets, const RpcListenerOptions& options, Taker taker);
  // Closes the port, unless Close() did.
  ~RpcListener();

  // The next connection from there, an address and port of this process, is taken however many there are.
  void ExpectFrom(const SocketAddress& own) RUNAHEAD_EXCLUDES(mu_);

  // What was accepted so far at the listening socket with this index, of those that the constructor was given.
  Acceptance acceptance(size_t socket) const RUNAHEAD_EXCLUDES(mu_);

  // Nobody is accepted any more when this returns, and the port is free.
  void Close() RUNAHEAD_EXCLUDES(mu_);

 private:
  using Time = absl::Time;
  void Run() RUNAHEAD_EXCLUDES(mu_);
  void WaitForConnections();
  void AcceptAll(size_t socket);
  void Receive(NewConnection connection, size_t socket);
  // Takes note that it was accepted.
  bool IsExpected(const SocketAddress& peer, size_t socket) RUNAHEAD_EXCLUDES(mu_);
  // Why a connection from `address` is not taken; nullopt: it is.
  std::optional<ConnectionRefusal> WhyNot(int socket, const std::string& address);
  void Refuse(ConnectionRefusal why, const std::string& address);
  void Sweep();

  ListeningSockets sockets_;
  const RpcListenerOptions options_;
  const int most_;  // connections, as far as descriptors allow
  const Taker taker_;
  Descriptor wake_;  // an eventfd
  mutable Mutex mu_;
  std::optional<SocketAddress> expected_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<uint64_t> accepted_ RUNAHEAD_GUARDED_BY(mu_);  // by socket; also those that were closed at once
  bool closing_ RUNAHEAD_GUARDED_BY(mu_) = false;

  // The thread's own:
  Accepter accepter_;
  OpenConnections open_;
  bool paused_ = false;  // not even the spare descriptor was left
  Time swept_at_ = absl::InfinitePast();
  RareLine refused_{absl::Minutes(1)};

  std::thread thread_;
};

}  // namespace runahead
