// The ranges of sampling options, for the workers' services.
#pragma once

#include "absl/status/status.h"
#include "worker/model/sampling.h"

namespace runahead {

// INVALID_ARGUMENT "sampling.<field>: what is wrong", with the names of SamplingParams.
absl::Status CheckSampling(const SamplingOptions& sampling);

}  // namespace runahead
