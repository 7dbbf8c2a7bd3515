// Takes connections from a listening socket, also when the process has no descriptor left.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "server/base/descriptor.h"
#include "server/base/socket_address.h"

namespace runahead {

struct NewConnection {
  Descriptor socket;  // non-blocking, closed on exec
  SocketAddress peer;
};

// Without a free descriptor accept() fails and leaves the connection in the queue: poll() reports it again and again,
// and no connection behind it comes in. So this keeps one spare descriptor, accepts with it, and closes. Used by one
// thread.
class Accepter {
 public:
  Accepter() { KeepSpare(); }

  // The next connection that waits at `listener`; nullopt when there is none. The socket may be the last descriptor
  // (IsAmongTheLast): close it soon unless it matters. RESOURCE_EXHAUSTED: not even one is left, try later;
  // UNAVAILABLE: nobody will come at this listener any more.
  absl::StatusOr<std::optional<NewConnection>> Next(const Descriptor& listener);

 private:
  void KeepSpare();

  Descriptor spare_;  // not valid while a connection has it
};

}  // namespace runahead
