// One sequence's KV in plain buffers, and passes over it: a model without chain or store.
#pragma once

#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/model/layer_pass.h"

namespace runahead {

class DenseKv {
 public:
  // Room for `capacity` tokens.
  DenseKv(Device& device, const Model& model, int64_t capacity) : row_bytes_(model.kv_row_bytes()) {
    for (int64_t layer = 0; layer < model.config().layers; ++layer) {
      auto buffer = device.Allocate(static_cast<size_t>(capacity) * row_bytes_, MemoryKind::kDevice);
      RUNAHEAD_CHECK(buffer.ok());
      layers_.push_back(BufferRef::Whole(*std::move(buffer)));
    }
  }

  // Rows of the pass that comes next: positions [length, length + rows).
  void Next(int64_t rows) { rows_ = rows; }
  // The pass is enqueued: its rows belong to the sequence.
  void Append() { length_ += rows_; }

  // Of a pass over the rows that come next.
  KvLayout Layout() const { return KvLayout::OnePage(rows_, length_ + rows_); }

  int64_t length() const { return length_; }
  BufferRef layer(int64_t index) const { return layers_[index]; }

 private:
  const size_t row_bytes_;
  std::vector<BufferRef> layers_;
  int64_t rows_ = 0;
  int64_t length_ = 0;
};

// PassMemory of passes that run one at a time.
struct OwnedPassMemory {
  explicit OwnedPassMemory(Device& device) : own(device), shared(device) {}
  PassMemory memory() { return {own, shared}; }
  ForwardScratch own, shared;
};

// Enqueues a pass over kv.Layout(), whatever layout `batch` has, with kv.layer(i) as the base of layer i: of a prompt's
// rows where it is not batch-invariant. Logits as LayerPass::Logits gives them.
template <typename Kv>
absl::StatusOr<Tensor> EnqueuePass(const Model& model, Device& device, Stream& stream, OwnedPassMemory& memory,
                                   ForwardBatch batch, const Kv& kv) {
  batch.kv = kv.Layout();
  batch.kv.of_prompts = !batch.batch_invariant && !batch.kv.by_pieces;
  LayerPass pass(model, device, stream, memory.memory(), std::move(batch));
  RUNAHEAD_RETURN_IF_ERROR(pass.Begin());
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    RUNAHEAD_RETURN_IF_ERROR(pass.Project(layer, kv.layer(layer)));
    RUNAHEAD_RETURN_IF_ERROR(pass.Attend(layer, kv.layer(layer)));
  }
  return pass.Logits();
}

}  // namespace runahead
