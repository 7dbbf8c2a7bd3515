// A decode step where ops reach all KV where it lies: on the device, or in host memory that is the device's own.
#pragma once

#include "worker/decode/step_loop.h"
#include "worker/model/layer_pass.h"

namespace runahead {

// All that is given to the constructor outlives the loop.
class DecodeLoop final : public StepLoop {
 public:
  DecodeLoop(const Model& model, Device& device, const KvStore& store, Stream& stream);
  absl::StatusOr<Tensor> Step(absl::Span<const DecodeRow> rows) override;
  absl::Status CheckTokens(int64_t) const override { return absl::OkStatus(); }
  void Leave(const KvStore::Sequence&) override {}  // a step's work is done before the next one is asked for

 private:
  const Model& model_;
  Device& device_;
  const KvStore& store_;
  Stream& stream_;
  ForwardScratch own_, shared_;
};

}  // namespace runahead
