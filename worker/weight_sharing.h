// Weights that the workers of a host have in common, where the options say so.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/cpu/shared_weights.h"
#include "worker/model_facts.h"
#include "worker/options.h"

namespace runahead {

// What a CPU that computes in `numerics` shares the model's weights by. Null, with the reason in the log, where it does
// not. Waits while another worker packs. RESOURCE_EXHAUSTED with the numbers where the weights, which nobody has packed
// yet, do not fit in the memory of this host.
absl::StatusOr<std::shared_ptr<SharedWeights>> ShareWeights(const WorkerOptions& options, const ModelFacts& model,
                                                            std::string_view numerics);

// All weights are loaded, of a model with these contents (WeightsHash): lets others have what was packed, and says in
// the log what is shared. Errors: those of SharedWeights::Complete.
absl::Status CompleteSharing(SharedWeights& weights, const std::string& contents);

}  // namespace runahead
