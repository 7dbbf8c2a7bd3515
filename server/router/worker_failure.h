// Failures of workers in the terms of the public service.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace runahead {

// What a worker's failure means to the client: whatever it was, the request itself was in order. UNAVAILABLE,
// DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED and OUT_OF_RANGE stay, what a second attempt may cure (a lost lease or
// hand-off) becomes UNAVAILABLE, anything else INTERNAL. `who` stands before the message.
absl::Status OfWorker(const std::string& who, const absl::Status& failure);

}  // namespace runahead
