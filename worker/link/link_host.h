// At which address of this host other workers reach its links.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace runahead {

// A numeric address for `listen_host`, a name or address that this process listens at. Where that is all of them
// ("0.0.0.0", "::"): the first address of a network that is up, IPv4 first, loopback last. Blocks on the resolver.
// INVALID_ARGUMENT for a name that is unknown.
absl::StatusOr<std::string> LinkHost(const std::string& listen_host);

}  // namespace runahead
