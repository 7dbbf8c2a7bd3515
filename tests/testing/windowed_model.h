// A model that sees less: no family that loads has windows yet.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "worker/model/model.h"

namespace runahead {

// `inner`, but attention has other windows; 0 is none.
class WindowedModel final : public Model {
 public:
  // By layer; where there are fewer windows than layers they come again in turn.
  WindowedModel(std::shared_ptr<const Model> inner, const std::vector<int64_t>& windows) : inner_(std::move(inner)) {
    for (int64_t layer = 0; layer < config().layers; ++layer) {
      shapes_.push_back(inner_->attention(layer));
      shapes_.back().window = windows[static_cast<size_t>(layer) % windows.size()];
    }
  }
  // One in all layers, or another in the last.
  WindowedModel(std::shared_ptr<const Model> inner, int64_t window, int64_t last_layer_window)
      : WindowedModel(std::move(inner), std::vector<int64_t>{window}) {
    shapes_.back().window = last_layer_window;
  }
  WindowedModel(std::shared_ptr<const Model> inner, int64_t window) : WindowedModel(std::move(inner), window, window) {}

  const ModelConfig& config() const override { return inner_->config(); }
  LayerMatrices Matrices(int64_t layer) const override { return inner_->Matrices(layer); }
  std::vector<std::shared_ptr<const Weights>> Tables() const override { return inner_->Tables(); }
  const AttentionShape& attention(int64_t layer) const override { return shapes_[layer]; }
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
  std::vector<AttentionShape> shapes_;
};

}  // namespace runahead
