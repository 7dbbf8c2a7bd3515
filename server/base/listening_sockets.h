// Sockets that listen where a user said.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/address.h"
#include "server/base/descriptor.h"
#include "server/base/socket_address.h"

namespace runahead {

struct ListeningSockets {
  std::vector<Descriptor> sockets;  // one for each address of the host; non-blocking, closed on exec
  HostPort address;                 // as it was asked for, with the port that was really bound
};

// Listens on all addresses that the host's name has; "0.0.0.0" and "::" are all addresses of both families, as far as
// the machine has them. Port 0 takes a free one, the same for all. Blocks on the resolver. No other process can listen
// there, too. UNAVAILABLE names `option`, the address and the system's reason.
absl::StatusOr<ListeningSockets> ListenOn(absl::string_view option, const HostPort& address);

// Of a socket, or all zero where it has none.
SocketAddress OwnAddress(const Descriptor& socket);

}  // namespace runahead
