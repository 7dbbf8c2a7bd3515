// A decode step for sequences of different lengths together: what the engine asks of a loop.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/tensor.h"
#include "server/base/span_recorder.h"
#include "worker/kv/store.h"

namespace runahead {

// A token of one sequence. Its KV goes to row `position` of the store, where rows [0, position) are filled, or rows of
// the same step before this one fill them: a sequence may bring several, which stand together, at positions that follow
// each other.
struct DecodeRow {
  const KvStore::Sequence* sequence = nullptr;  // stays open, and where it is, until Leave
  int32_t token = 0;
  int64_t position = 0;
  SpanRecorder* spans = nullptr;     // where what a step is made of is to be recorded; lives until Leave. Null: nowhere
  std::string_view request_id = {};  // for reports; stays as `sequence` does
  bool wants_logits = true;          // else the row is there for its KV alone
};

// Used by one thread, which waits for a step's work before it asks for the next one.
class StepLoop {
 public:
  virtual ~StepLoop() = default;
  // Enqueues a step: every row appends to its own sequence and attends over all of it up to itself. Logits f32 [rows
  // that want them, vocab], valid until the next step; a row's are bitwise the same in any company and in whichever
  // steps its sequence's rows came, or as close as docs/kvpr.md says where KV is recomputed. Errors are those of
  // arguments and device memory, and UNIMPLEMENTED where the loop takes no more than one row of a sequence.
  virtual absl::StatusOr<Tensor> Step(absl::Span<const DecodeRow> rows) = 0;
  // Whether steps enqueue the same ops on the same buffers again and again, so that a device may keep them as a piece
  // (Device::BeginStep).
  virtual bool repeats() const { return true; }
  // OK where steps may take a sequence to `tokens` tokens, of prompt and output; the model's context is a limit
  // besides. OUT_OF_RANGE says what would work. The same always; any thread may ask.
  virtual absl::Status CheckTokens(int64_t tokens) const = 0;
  // The sequence takes part in no step any more. When it returns nothing reads or writes its memory.
  virtual void Leave(const KvStore::Sequence& sequence) = 0;
  // Whether KV of all rows goes to the store, where others may begin with it.
  virtual bool stores_kv() const { return true; }
  // Of a loop that stores KV, between steps: waits until that of all that came for the sequence and that its steps
  // computed is in the store's rows. False where some is not, for X came instead and no step has had the sequence, or
  // where a write failed.
  virtual bool SettleKv(const KvStore::Sequence& /*sequence*/) { return true; }
  // No sequence is to be decoded for the moment: what the loop does for itself now may take some ten milliseconds.
  virtual void OnIdle() {}
};

}  // namespace runahead
