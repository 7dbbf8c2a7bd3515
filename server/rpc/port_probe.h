// A client's way to a port of this process.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/descriptor.h"
#include "server/base/socket_address.h"

namespace runahead {

// Connects as any client does, and looks whether HTTP/2 answers: gRPC says its settings to whoever comes. It has its
// socket from the start, so that it needs no descriptor when none is left. Used by one thread.
class PortProbe {
 public:
  // Told where the connection that is now made comes from.
  using Announce = std::function<void(const SocketAddress& from)>;

  // `to` is the address of a listening socket of this process; where that is all addresses, the loopback one is asked.
  // UNAVAILABLE when there is no socket.
  static absl::StatusOr<std::unique_ptr<PortProbe>> Create(const SocketAddress& to, Announce announce);

  // UNAVAILABLE, saying how far it came within `timeout`. RESOURCE_EXHAUSTED: there is no port to ask from.
  absl::Status Ask(absl::Duration timeout);

 private:
  PortProbe(Descriptor socket, const SocketAddress& from, const SocketAddress& to, Announce announce);
  absl::Status Connect(absl::Time until);
  absl::Status ReadGreeting(absl::Time until);

  const Descriptor socket_;
  const SocketAddress from_;  // with port 0
  const SocketAddress to_;
  const Announce announce_;
};

}  // namespace runahead
