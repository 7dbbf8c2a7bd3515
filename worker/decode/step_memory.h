// How much of a device's memory decode steps take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/model/model.h"

namespace runahead {

// Bytes of device memory that a decode engine takes at most beside weights and KV: steps of `max_batch` sequences,
// whose KV is `capacity_tokens` together, the tokens drawn from them, and the rows that they compute beside.
struct StepRowsAtMost {
  int64_t of_output = 0;   // that was computed elsewhere before; 0: none, and none of prompts
  int64_t of_prompts = 0;  // in a pass
};
size_t DecodeStepBytes(const ModelConfig& config, int64_t max_batch, StepRowsAtMost rows, int64_t capacity_tokens);

}  // namespace runahead
