// The checks of a sequence that do not need its lease.
#pragma once

#include "absl/status/status.h"
#include "worker/decode/sequence.h"
#include "worker/model/model.h"

namespace runahead {

// INVALID_ARGUMENT, or OUT_OF_RANGE where the sequence outgrows the model's context; "field: what is wrong", with the
// names of DecodeRequest and SamplingParams.
absl::Status CheckSequence(const DecodeSequence& sequence, const ModelConfig& model);

}  // namespace runahead
