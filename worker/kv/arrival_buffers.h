// The host memory that a store's slices pass through where they are not kept as they arrive, and what becomes of them
// on the way.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "worker/kv/bounce_buffer.h"
#include "worker/kv/store_options.h"

namespace runahead {

// Null where slices of the kind go to their place at once.
struct ArrivalBuffers {
  std::unique_ptr<BounceBuffer> kv, x;
};

// INVALID_ARGUMENT where the store cannot quantise its rows as `options` say.
absl::Status CheckQuantisation(const KvStoreOptions& options);

// Of a store of `store_blocks` blocks, whose options were checked; `device` is the store's. INVALID_ARGUMENT where a
// slice would not fit bounce_bytes.
absl::StatusOr<ArrivalBuffers> MakeArrivalBuffers(const KvStoreOptions& options, Device& device, int64_t store_blocks);

}  // namespace runahead
