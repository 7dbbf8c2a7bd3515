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
#include "worker/decode/window_rows.h"
#include "worker/kv/static_window.h"
#include "worker/model/layer_pass.h"

namespace runahead {

// Gives bitwise what DecodeLoop gives, but for rows in codes. A sequence's KV is copied from the store at its first
// step, and what it appends goes to its window only, so that its rows in the store stay those of the prompt. Memory is
// taken once, for max_rows sequences. Step's errors besides: UNIMPLEMENTED for several rows of a sequence;
// RESOURCE_EXHAUSTED for more sequences; FAILED_PRECONDITION where one comes back at another position than its next or
// its last; OUT_OF_RANGE as CheckTokens; INVALID_ARGUMENT as WindowRows::Load.
class StaticWindowLoop final : public StepLoop {
 public:
  // All references outlive the loop. INVALID_ARGUMENT for a store whose KV is quantised, for no rows, or for codes on a
  // device whose memory the host does not read; RESOURCE_EXHAUSTED where the device has no memory for the windows,
  // naming its size.
  static absl::StatusOr<std::unique_ptr<StaticWindowLoop>> Create(const Model& model, Device& device,
                                                                  const KvStore& store, Stream& stream,
                                                                  const StaticWindowOptions& options);

  absl::StatusOr<Tensor> Step(absl::Span<const DecodeRow> rows) override;
  // Up to S, or any number where every layer's attention has a window of at most S.
  absl::Status CheckTokens(int64_t tokens) const override;
  void Leave(const KvStore::Sequence& sequence) override;
  bool stores_kv() const override { return false; }

  int64_t bytes() const { return rows_->bytes(); }

 private:
  StaticWindowLoop(const Model& model, Device& device, const KvStore& store, Stream& stream,
                   const StaticWindowOptions& options, std::unique_ptr<WindowRows> rows);

  // The row's sequence with room for its position, which is the window's last one then.
  absl::StatusOr<HeldWindow> Place(const DecodeRow& row);

  const Model& model_;
  Device& device_;
  const KvStore& store_;
  Stream& stream_;
  const StaticWindowSize size_;
  const int64_t slots_;
  const bool windowed_;  // no query sees more than S positions
  const std::unique_ptr<WindowRows> rows_;
  ForwardScratch own_, shared_;
  absl::flat_hash_map<const KvStore::Sequence*, HeldWindow> held_;
  std::vector<int64_t> free_slots_;
};

}  // namespace runahead
