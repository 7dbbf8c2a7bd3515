// Whether two workers can be joined by a link between their GPUs.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace runahead {

// Of the identities of both sides (PeerCommFactory::identity(), "nccl 2.27.7 GPU-1c9e host 8f3a"; empty: a worker
// without such links). OK, or FAILED_PRECONDITION with the reason, in words for a log. The same for (a, b) as for (b,
// a), so that both sides come to the same end without asking each other.
absl::Status DeviceLinkFits(std::string_view own, std::string_view peer);

}  // namespace runahead
