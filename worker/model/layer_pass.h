// One pass of some rows through a model's layers, as every loop makes it: chunks, attention, the rows whose logits are
// wanted. The loop says when, and where KV lies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "worker/model/model.h"
#include "worker/model/x_form.h"

namespace runahead {

// The rows of a pass: a part of one prompt, or those of a decode step.
struct ForwardBatch {
  std::vector<int32_t> ids;
  KvLayout kv;                      // of as many query rows; says their positions
  std::vector<int64_t> logit_rows;  // rising; rows whose logits are wanted. Empty: only KV is wanted
  // Of logit_rows the first so many: too many for logits of all at once, which LogitsOf makes some at a time.
  int64_t scored_rows = 0;
  bool batch_invariant = false;  // decode: a row's result does not depend on the others
};

// Memory that outlives passes.
struct PassMemory {
  ForwardScratch& own;     // of one pass at a time: what it keeps from layer to layer, and its logits
  ForwardScratch& shared;  // by passes on one stream, also when several are half done
};

// Begin; then for each layer in turn Project and Attend; then Logits. Where attention is by pieces, and KV lies in
// several places: ProjectQkv, what splits its qkv to q() and to where KV goes, AttendPieces of each place, and
// Finish in place of Project and Attend. Used by one thread; all that is given to the constructor outlives the pass.
// Errors are those of arguments, and of device memory.
class LayerPass {
 public:
  LayerPass(const Model& model, Device& device, Stream& stream, PassMemory memory, ForwardBatch batch);

  // From here on the layer's matrices are there: for Project, ProjectQkv and what follows them, of a model that streams
  // its weights. `matrices` stays as it is until the next call, or the pass ends.
  void UseMatrices(LayerMatrices matrices) { matrices_ = matrices; }

  // Checks the batch (INVALID_ARGUMENT, OUT_OF_RANGE), makes the table of its KV, and embeds its ids.
  absl::Status Begin();
  // Q, and K and V to where the batch's layout says behind `kv`, the layer's base; and X of all rows to `x`, where it
  // is wanted.
  absl::Status Project(int64_t layer, const BufferRef& kv, const XRows& x = {});
  // Attention over the KV behind `kv`, and the rest of the layer. In the last layer only of the rows whose logits are
  // wanted: the others matter for their KV alone. `attended` is called when attention is enqueued and what follows it
  // is not; never where the layer attends to nothing.
  absl::Status Attend(int64_t layer, const BufferRef& kv, const std::function<void()>& attended = {});

  // Q|K|V of all rows, rotated, to qkv, f32 [rows, (heads + 2*kv_heads)*head_dim], and X to `x` where it is wanted. The
  // batch's layout says positions only.
  absl::Status ProjectQkv(int64_t layer, const MutTensor& qkv, const XRows& x);
  // [rows, heads*head_dim]: what AttendPieces reads.
  const MutTensor& q() const { return q_; }
  // f32 [pieces, heads*(head_dim+1)]: where AttendPieces puts what the layer's pieces give, for pieces that are made
  // elsewhere. Between ProjectQkv and Finish.
  absl::StatusOr<MutTensor> Partials(int64_t layer);
  // Attention over the positions that `table`, of the same sequences, has behind `kv`.
  absl::Status AttendPieces(int64_t layer, const KvTable& table, const BufferRef& kv);
  // Merges the pieces of all positions, each of which was attended once, and does the rest of the layer.
  absl::Status Finish(int64_t layer);

  // f32 [wanted rows but the scored ones, vocab], valid until LogitsOf or the next pass over the same memory; without
  // rows where none are wanted.
  absl::StatusOr<Tensor> Logits();
  // Of the wanted rows, all counted, those from `first` on: f32 [count, vocab], valid as long.
  absl::StatusOr<Tensor> LogitsOf(int64_t first, int64_t count);

  int64_t rows() const { return static_cast<int64_t>(batch_.ids.size()); }

 private:
  absl::Status Check() const;
  SectionRows Rows(int64_t begin, int64_t count) const;
  absl::Status ProjectRows(int64_t layer, int64_t begin, int64_t count, const XRows& x, Projection to);
  absl::Status KeepWanted();
  absl::Status FinishChunks(int64_t layer, const ConstTensor& attended);

  const Model& model_;
  Device& device_;
  Stream& stream_;
  const PassMemory memory_;
  LayerMatrices matrices_;  // of the layer, where they were streamed
  ForwardBatch batch_;      // once only the wanted rows are left: theirs
  std::shared_ptr<const KvTable> table_;
  Tensor x_;         // f32 [rows, hidden], the residual stream
  Tensor q_;         // [rows, heads*head_dim]
  Tensor partials_;  // of the layer's pieces, while there are some
};

}  // namespace runahead
