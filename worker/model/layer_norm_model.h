// What families with LayerNorm and rotary positions have in common (Falcon, StarCoder2): all but how a layer ends.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "worker/model/model.h"
#include "worker/model/rotary.h"
#include "worker/model/rotary_qkv.h"
#include "worker/model/tensor_loader.h"
#include "worker/model/token_tables.h"

namespace runahead {

// A layer's matrices, in the order of Model::Matrices.
enum LayerNormMatrix {
  kLayerNormQkv,     // [q_dim + 2*kv_dim, hidden]: Q over K over V
  kLayerNormOutput,  // [hidden, q_dim]
  kLayerNormUp,      // [ffn, hidden]
  kLayerNormDown,    // [hidden, ffn]
};

// f32 [1, n]. Biases of matrices have no buffer where the model has none.
struct LayerNormLayer {
  Tensor attention_norm, attention_norm_bias;  // [1, hidden]
  Tensor ffn_norm, ffn_norm_bias;              // [1, hidden]
  QkvVectors qkv;
  Tensor output_bias, up_bias, down_bias;
  std::array<std::shared_ptr<const Weights>, 4> matrices;
};

struct LayerNormWeights {
  TokenTables tables;
  std::vector<LayerNormLayer> layers;
  Tensor output_norm, output_norm_bias;  // f32 [1, hidden]
  Tensor rotation;                       // f32 [context_length, head_dim]
};

// Everything that is not a layer; as many layers as the config says, which are to be loaded. Errors name the tensor.
absl::StatusOr<LayerNormWeights> LoadLayerNormEnds(const TensorLoader& loader, const ModelConfig& config,
                                                   const Rotary& rotary);

// Its heirs add Finish, made of the protected pieces. Errors and threads: as Model.
class LayerNormModel : public Model {
 public:
  LayerNormModel(ModelConfig config, std::shared_ptr<Device> device, LayerNormWeights weights);
  const ModelConfig& config() const override { return config_; }
  const AttentionShape& attention(int64_t layer) const override { return shapes_[layer]; }
  LayerMatrices Matrices(int64_t layer) const override { return weights_.layers[layer].matrices; }
  std::vector<std::shared_ptr<const Weights>> Tables() const override { return weights_.tables.All(); }

  absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const override;
  absl::Status Project(const SectionRows& rows, int64_t layer, const ConstTensor& x,
                       const Projection& to) const override;
  absl::Status Recompute(const SectionRows& rows, int64_t layer, const ConstTensor& normed,
                         const BufferRef& kv) const override;
  absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const override;

 protected:
  // x += attended * Wo + bo.
  absl::Status AddAttended(const SectionRows& rows, int64_t layer, const ConstTensor& attended,
                           const MutTensor& x) const;
  // activation(norm(x) * Wup + bup) in `dtype`, [rows, ffn]: scratch, of use until AddMlp.
  absl::StatusOr<Tensor> Up(const SectionRows& rows, int64_t layer, const ConstTensor& x, Activation activation,
                            DType dtype) const;
  // x += up * Wdown + bdown.
  absl::Status AddMlp(const SectionRows& rows, int64_t layer, const ConstTensor& up, const MutTensor& x) const;

 private:
  RotaryQkv Qkv(const SectionRows& rows, int64_t layer) const;

  const ModelConfig config_;
  const std::shared_ptr<Device> device_;
  const LayerNormWeights weights_;
  const std::vector<AttentionShape> shapes_;  // by layer
};

}  // namespace runahead
