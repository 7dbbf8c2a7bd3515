// A decode step where ops reach all KV where it lies: on the device, or in host memory that is the device's own. And
// rows of prompts over the same KV.
#pragma once

#include "worker/decode/step_loop.h"
#include "worker/model/layer_pass.h"

namespace runahead {

// How a row is computed, which belongs to its position, whoever computes it.
enum class RowKind {
  kOutput,  // by decode's arithmetic: bitwise the same in any company
  // By prefill's: what a prefill worker gives, bitwise where prefill does not depend on how a prompt is cut, else by
  // the rules of prefill's numerics. For models loaded with kUsePrefill.
  kPrompt,
};

// A step's rows are all of one kind. All that is given to the constructor outlives the loop.
class DecodeLoop final : public StepLoop {
 public:
  DecodeLoop(const Model& model, Device& device, const KvStore& store, Stream& stream, RowKind kind = RowKind::kOutput);
  absl::StatusOr<Tensor> Step(absl::Span<const DecodeRow> rows) override;
  bool repeats() const override { return kind_ == RowKind::kOutput; }
  absl::Status CheckTokens(int64_t) const override { return absl::OkStatus(); }
  void Leave(const KvStore::Sequence&) override {}  // a step's work is done before the next one is asked for

 private:
  const Model& model_;
  Device& device_;
  const KvStore& store_;
  Stream& stream_;
  const RowKind kind_;
  ForwardScratch own_, shared_;
};

}  // namespace runahead
