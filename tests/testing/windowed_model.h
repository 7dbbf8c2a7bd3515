// A model that sees less: no family that loads has windows yet.
#pragma once

#include <memory>
#include <utility>

#include "worker/model/model.h"

namespace runahead {

// `inner`, but attention sees the last `window` positions in all layers but the last, which has one of
// `last_layer_window`; 0 is no window.
class WindowedModel final : public Model {
 public:
  WindowedModel(std::shared_ptr<const Model> inner, int64_t window, int64_t last_layer_window)
      : inner_(std::move(inner)), shape_(inner_->attention(0)), last_(shape_) {
    shape_.window = window;
    last_.window = last_layer_window;
  }
  WindowedModel(std::shared_ptr<const Model> inner, int64_t window) : WindowedModel(std::move(inner), window, window) {}

  const ModelConfig& config() const override { return inner_->config(); }
  LayerMatrices Matrices(int64_t layer) const override { return inner_->Matrices(layer); }
  std::vector<std::shared_ptr<const Weights>> Tables() const override { return inner_->Tables(); }
  const AttentionShape& attention(int64_t layer) const override {
    return layer + 1 == config().layers ? last_ : shape_;
  }
  absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const override {
    return inner_->Embed(rows, ids, x);
  }
  absl::Status Project(const SectionRows& rows, int64_t layer, const ConstTensor& x,
                       const Projection& to) const override {
    return inner_->Project(rows, layer, x, to);
  }
  absl::Status Recompute(const SectionRows& rows, int64_t layer, const ConstTensor& normed,
                         const BufferRef& kv) const override {
    return inner_->Recompute(rows, layer, normed, kv);
  }
  absl::Status Finish(const SectionRows& rows, int64_t layer, const ConstTensor& attended,
                      const MutTensor& x) const override {
    return inner_->Finish(rows, layer, attended, x);
  }
  absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const override {
    return inner_->Logits(rows, x, logits);
  }

 private:
  const std::shared_ptr<const Model> inner_;
  AttentionShape shape_, last_;
};

}  // namespace runahead
