// Failures of workers in the terms of the public service.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace runahead {

// What a worker's failure means to the client: whatever it was, the request itself was in order. UNAVAILABLE,
// DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED and OUT_OF_RANGE stay, what a second attempt may cure (a lost lease or
// hand-off) becomes UNAVAILABLE, anything else INTERNAL. `who` stands before the message.
absl::Status OfWorker(const std::string& who, const absl::Status& failure);

// Whether a worker is to be blamed for how it ended a request, where neither the client nor another worker ended it:
// not for one that it refused (bad input, a full store), nor where it is unreachable, about to stop, or has lost its
// leases because the router was unreachable.
bool IsToBlame(const absl::Status& failure);

}  // namespace runahead
