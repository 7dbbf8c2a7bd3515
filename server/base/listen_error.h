// Why nothing can listen at an address.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/base/address.h"

namespace runahead {

// For those whose library says only that it failed: UNAVAILABLE, with the system's reason as a socket of its own finds
// it, and what to do. `option` names what the user has set: "listen".
absl::Status ListenError(absl::string_view option, const HostPort& address);

// The same for a reason that is known.
absl::Status ListenError(absl::string_view option, const HostPort& address, absl::string_view why);

}  // namespace runahead
