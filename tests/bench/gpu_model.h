// Models of the shapes that are measured, with random weights, and random data. What a value is does not matter to the
// time that it takes, as long as it is neither zero nor repeated too often: power does depend on it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/gpu_suites.h"
#include "tests/bench/gpu_timing.h"
#include "worker/model/layer_pass.h"
#include "worker/model/llama.h"

namespace runahead {

// Of the models below as they are published.
inline constexpr int64_t kWholeLayers = 32;

// Weights that are stored in what is computed in.
WeightType WeightTypeOf(DType dtype);

// Llama-7B and Llama-3-8B with `bench.layers` layers; or a tiny one.
std::vector<ModelConfig> BenchModels(const Bench& bench);

struct BenchModel {
  ModelConfig config;
  LlamaWeights weights;
  std::shared_ptr<const LlamaModel> full;
  std::shared_ptr<const LlamaModel> half;  // its first layers / 2
};
absl::StatusOr<BenchModel> MakeBenchModel(const Bench& bench, const ModelConfig& config);

// `bytes` of device memory full of normally distributed values in the device's compute dtype.
absl::StatusOr<BufferRef> RandomMemory(Device& device, size_t bytes);
absl::StatusOr<Tensor> RandomTensor(Device& device, int64_t rows, int64_t cols);
absl::StatusOr<Tensor> EmptyTensor(Device& device, DType dtype, int64_t rows, int64_t cols);

// One pass over `tokens` rows, without a layout of KV; logits of the last one.
ForwardBatch PromptBatch(const ModelConfig& config, int64_t tokens);

// A pass of `layers` layers and one of half as many: what is constant falls out of their difference.
struct DepthTiming {
  Timing full, half;
  int64_t layers = 0;

  // Of one layer more. Where noise hides it, the layer's share of the whole pass.
  Timing layer() const;
  // Of all kWholeLayers: what was measured, and a layer more for each that was not.
  double whole_s() const;
};

// Multiplications and additions of a layer's products for so many tokens, and of causal attention of `queries` whose
// last is at position length - 1.
double ProductFlops(const ModelConfig& config, int64_t tokens);
double AttentionFlops(int64_t heads, int64_t head_dim, int64_t queries, int64_t length);

}  // namespace runahead
