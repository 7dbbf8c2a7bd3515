// Runs a model once before it serves, so that the first request does not pay for what is made on first use.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model.h"

namespace runahead {

// Prefill passes and a batch-invariant one, as `uses` (WeightUse bits) says. Blocks. Device memory that does for short
// prompts only is enough; RESOURCE_EXHAUSTED where it does not do for those.
absl::Status WarmUp(const Model& model, Device& device, unsigned uses);

}  // namespace runahead
