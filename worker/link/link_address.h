// Link addresses: numeric hosts with ports ("10.0.0.1:4711").
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/base/socket_address.h"

namespace runahead {

// Of a link address, which may come from anyone. INVALID_ARGUMENT: it is none.
absl::StatusOr<SocketAddress> ParseLinkAddress(const std::string& address);

}  // namespace runahead
