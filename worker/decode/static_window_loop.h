// A decode step over static windows: each sequence's newest KV in a buffer of its own, of a size that never changes
// (docs/static-window.md).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/decode/step_loop.h"
#include "worker/kv/static_window.h"
#include "worker/model/layer_pass.h"

namespace runahead {

struct StaticWindowOptions {
  StaticWindowSize size;
  int64_t max_rows = 0;  // sequences that take part in steps before they leave
};

// Gives bitwise what DecodeLoop gives. A sequence's KV is copied from the store at its first step, and what it appends
// goes to its window only, so that its rows in the store stay those of the prompt. Memory is taken once, for max_rows
// sequences. Step's errors besides: RESOURCE_EXHAUSTED for more sequences; FAILED_PRECONDITION where one comes back at
// another position than its next or its last; OUT_OF_RANGE as CheckTokens.
class StaticWindowLoop final : public StepLoop {
 public:
  // All references outlive the loop. INVALID_ARGUMENT for a store whose KV is quantised, or no rows; RESOURCE_EXHAUSTED
  // where the device has no memory for the windows, naming its size.
  static absl::StatusOr<std::unique_ptr<StaticWindowLoop>> Create(const Model& model, Device& device,
                                                                  const KvStore& store, Stream& stream,
                                                                  const StaticWindowOptions& options);

  absl::StatusOr<Tensor> Step(absl::Span<const DecodeRow> rows) override;
  // Up to S, or any number where every layer's attention has a window of at most S.
  absl::Status CheckTokens(int64_t tokens) const override;
  void Leave(const KvStore::Sequence& sequence) override;

  int64_t bytes() const { return static_cast<int64_t>(memory_->size()); }

 private:
  struct Held {
    int64_t slot = 0;
    StaticWindow window;
  };

  StaticWindowLoop(const Model& model, Device& device, const KvStore& store, Stream& stream,
                   const StaticWindowOptions& options, std::shared_ptr<Buffer> memory);

  // The row's sequence with room for its position, which is the window's last one then.
  absl::StatusOr<Held> Place(const DecodeRow& row);
  absl::Status Load(const KvStore::Sequence& sequence, const Held& held);
  absl::Status MoveRows(int64_t slot, const StaticWindow::Move& move);
  void AddTo(const Held& held, KvLayout& layout) const;
  // All slots' rows of a layer, and some rows of one slot.
  BufferRef Layer(int64_t layer) const;
  BufferRef Rows(int64_t layer, int64_t slot, int64_t begin, int64_t count) const;

  const Model& model_;
  Device& device_;
  const KvStore& store_;
  Stream& stream_;
  const StaticWindowSize size_;
  const int64_t slots_, row_bytes_;
  const bool windowed_;                   // no query sees more than S positions
  const std::shared_ptr<Buffer> memory_;  // [layers][slots][reserve][row_bytes]
  ForwardScratch own_, shared_;
  absl::flat_hash_map<const KvStore::Sequence*, Held> held_;
  std::vector<int64_t> free_slots_;
};

}  // namespace runahead
