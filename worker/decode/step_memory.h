// How much of a device's memory decode steps take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/model/model.h"

namespace runahead {

// Bytes of device memory that a decode engine takes at most beside weights and KV: steps of `max_batch` sequences,
// whose KV is `capacity_tokens` together, and the tokens drawn from them.
size_t DecodeStepBytes(const ModelConfig& config, int64_t max_batch, int64_t capacity_tokens);

}  // namespace runahead
