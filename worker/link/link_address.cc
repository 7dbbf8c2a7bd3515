#include "worker/link/link_address.h"

namespace runahead {

absl::StatusOr<SocketAddress> ParseLinkAddress(const std::string& address) {
  const absl::StatusOr<HostPort> host_port = ParseHostPort(address);
  if (!host_port.ok()) return absl::InvalidArgumentError("the link address is damaged or none of this version");
  return NumericSocketAddress(*host_port);
}

}  // namespace runahead
