// The seam between a model's forward pass and where KV comes from and goes to.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"

namespace runahead {

// The pass calls, for each layer in turn: Begin, then Own, then Publish. Chain, TSP, store, and later KVPR and prefix
// reuse implement it, so that a family's pass is written once. Used by the thread that runs the pass.
class KvPort {
 public:
  virtual ~KvPort() = default;
  // Posts what must be under way before the layer's QKV projection (receives, transfers). May block the calling thread
  // until memory is free and the layers enqueued before have run; an error (CANCELLED, DEADLINE_EXCEEDED,
  // UNAVAILABLE...) ends the pass.
  virtual absl::Status Begin(int64_t layer) = 0;
  // Where the rows of this pass put their K and V: as many rows as the batch has, in its order.
  virtual absl::StatusOr<std::vector<KvSpan>> Own(int64_t layer) = 0;
  // The own KV is enqueued on `compute`. Sends it, hands it off, and says what each sequence attends over. May block
  // the calling thread until the KV of others is in memory: `compute` never waits for it. Errors as Begin's.
  virtual absl::StatusOr<std::vector<AttentionSequence>> Publish(int64_t layer, Stream& compute) = 0;
};

}  // namespace runahead
