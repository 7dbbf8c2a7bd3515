// A fake model whose sections do nothing: tests of what is around them override what they look at.
#pragma once

#include <cstdint>

#include "worker/model/model.h"

namespace runahead::testing {

// One head, one KV head of `head_dim` elements in f32.
class PassModel : public Model {
 public:
  PassModel(int64_t layers, int64_t hidden, int64_t head_dim, int64_t vocab, int64_t context_length) {
    config_.layers = layers;
    config_.hidden = hidden;
    config_.heads = config_.kv_heads = 1;
    config_.head_dim = head_dim;
    config_.vocab = vocab;
    config_.context_length = context_length;
    shape_ = {1, 1, head_dim, DType::kF32, 1.0f};
  }
  const ModelConfig& config() const override { return config_; }
  const AttentionShape& attention(int64_t) const override { return shape_; }
  LayerMatrices Matrices(int64_t) const override { return {}; }
  std::vector<std::shared_ptr<const Weights>> Tables() const override { return {}; }
  absl::Status Embed(const SectionRows&, absl::Span<const int32_t>, const MutTensor&) const override {
    return absl::OkStatus();
  }
  absl::Status Project(const SectionRows&, int64_t, const ConstTensor&, const Projection&) const override {
    return absl::OkStatus();
  }
  absl::Status Recompute(const SectionRows&, int64_t, const ConstTensor&, const BufferRef&) const override {
    return absl::UnimplementedError("nobody asks for it");
  }
  absl::Status Finish(const SectionRows&, int64_t, const ConstTensor&, const MutTensor&) const override {
    return absl::OkStatus();
  }
  absl::Status Logits(const SectionRows&, const ConstTensor&, const MutTensor&) const override {
    return absl::OkStatus();
  }

 private:
  ModelConfig config_;
  AttentionShape shape_;
};

}  // namespace runahead::testing
