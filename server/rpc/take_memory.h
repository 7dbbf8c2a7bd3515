// Memory for requests, and what a caller is told where there is none.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "server/base/byte_budget.h"

namespace runahead {

// Makes the lease this large. RESOURCE_EXHAUSTED says when to try again; INVALID_ARGUMENT
// where the whole budget would not do.
absl::Status TakeMemory(ByteBudget::Lease& lease, int64_t bytes);

}  // namespace runahead
