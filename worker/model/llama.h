// The Llama family: RMSNorm, rotary GQA attention, SwiGLU. Which architectures it is: llama_config.h.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "worker/model/model.h"
#include "worker/model/rotary_qkv.h"
#include "worker/model/tensor_loader.h"
#include "worker/model/token_tables.h"

namespace runahead {

// A layer's matrices, in the order of Model::Matrices.
enum LlamaMatrix {
  kLlamaQkv,     // [(heads + 2*kv_heads)*head_dim, hidden]: Q over K over V
  kLlamaOutput,  // [hidden, heads*head_dim]
  kLlamaGateUp,  // [2*ffn, hidden]: gate over up
  kLlamaDown,    // [hidden, ffn]
};

// Vectors are f32 [1, n]. Those that a model may lack have no buffer then.
struct LlamaLayer {
  Tensor attention_norm;  // [1, hidden]
  Tensor ffn_norm;        // [1, hidden]
  QkvVectors qkv;
  Tensor output_bias, gate_up_bias, down_bias;  // as their matrices have rows
  std::array<std::shared_ptr<const Weights>, 4> matrices;
};

struct LlamaWeights {
  TokenTables tables;
  std::vector<LlamaLayer> layers;
  Tensor output_norm;  // f32 [1, hidden]
  Tensor rotation;     // f32 [context_length, rotated dimensions]
};

// Loads every tensor, in parallel; errors name the tensor. Where a file keeps Q and K rows permuted for interleaved
// rotation, they are put back for the rotate-half form.
absl::StatusOr<LlamaWeights> LoadLlamaWeights(const TensorLoader& loader, const ModelConfig& config,
                                              const std::function<void(int, int)>& progress);

class LlamaModel final : public Model {
 public:
  LlamaModel(ModelConfig config, std::shared_ptr<Device> device, LlamaWeights weights);
  const ModelConfig& config() const override { return config_; }
  const AttentionShape& attention(int64_t layer) const override { return shapes_[layer]; }
  LayerMatrices Matrices(int64_t layer) const override { return weights_.layers[layer].matrices; }
  std::vector<std::shared_ptr<const Weights>> Tables() const override { return weights_.tables.All(); }

  absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const override;
  absl::Status Project(const SectionRows& rows, int64_t layer, const ConstTensor& x,
                       const Projection& to) const override;
  absl::Status Recompute(const SectionRows& rows, int64_t layer, const ConstTensor& normed,
                         const BufferRef& kv) const override;
  absl::Status Finish(const SectionRows& rows, int64_t layer, const ConstTensor& attended,
                      const MutTensor& x) const override;
  absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const override;

 private:
  RotaryQkv Qkv(const SectionRows& rows, int64_t layer) const;

  const ModelConfig config_;
  const std::shared_ptr<Device> device_;
  const LlamaWeights weights_;
  const std::vector<AttentionShape> shapes_;  // by layer
};

}  // namespace runahead
