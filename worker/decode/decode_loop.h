// A layer of a decode step, as it is computed for sequences of different lengths together.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/kv/store.h"
#include "worker/model/layer_pass.h"

namespace runahead {

// The next token of one sequence. Its KV goes to row `position` of the store, where rows [0, position) are filled.
struct DecodeRow {
  const KvStore::Sequence* sequence = nullptr;  // stays open until the step's work is done
  int32_t token = 0;
  int64_t position = 0;
};

// Used by one thread. All that is given to the constructor outlives the loop.
class DecodeLoop {
 public:
  DecodeLoop(const Model& model, Device& device, const KvStore& store, Stream& stream);
  // Enqueues a step: every row appends to its own sequence and attends over all of it. Logits f32 [rows, vocab], valid
  // until the next step; a row's are bitwise the same in any company. Errors are those of arguments and device memory.
  absl::StatusOr<Tensor> Step(absl::Span<const DecodeRow> rows);

 private:
  const Model& model_;
  Device& device_;
  const KvStore& store_;
  Stream& stream_;
  ForwardScratch own_, shared_;
};

}  // namespace runahead
