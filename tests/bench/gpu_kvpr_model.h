// Models that decode from host memory, with random weights: checkpoints in this process's memory, so that they are
// loaded as workers load theirs, with weights streamed too.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/gpu_suites.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/format/model_file.h"

namespace runahead {

// OPT-6.7B, Llama-2-7B and Llama-3-8B with `bench.layers` layers, in what the device computes in; or tiny ones.
std::vector<SyntheticModel> KvprModels(const Bench& bench);

// Takes as much host memory as the weights do, until nobody holds the file.
absl::StatusOr<std::shared_ptr<const ModelFile>> RandomGguf(const SyntheticModel& model);

}  // namespace runahead
