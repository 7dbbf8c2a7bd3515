// A draw from one row of logits: what Device::Sample says, on a thread.
#pragma once

#include <cstdint>

#include "kernels/base/op_params.h"

namespace runahead {

// logits: [n], n above 0. counts: [n] as in Device::Sample, or null: no penalties; tokens that are kept are
// the caller's business. The same on every machine and in every build; linear in n. -1: a logit is not finite.
int32_t SampleRow(const float* logits, int64_t n, const SampleParams& params, const int32_t* counts);

}  // namespace runahead
