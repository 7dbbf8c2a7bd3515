#include "worker/model/llama_config.h"

#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/config_keys.h"

namespace runahead {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

absl::StatusOr<float> LinearScale(const ConfigKeys& keys) {
  if (!keys.Has("rope.scaling.type")) return 1.0f;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string type, keys.String("rope.scaling.type"));
  if (type == "none") return 1.0f;
  if (type != "linear") {
    return keys.Refuse("rope.scaling.type", absl::StrCat("'", type, "' is not supported; none and linear are"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const float factor, keys.Float("rope.scaling.factor"));
  if (!(factor >= 1.0f)) return keys.Refuse("rope.scaling.factor", "must be at least 1");
  return factor;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadLlamaConfig(const ModelFile& file) {
  const ConfigKeys keys(file, "llama");
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, keys.Common());
  RUNAHEAD_ASSIGN_OR_RETURN(config.kv_heads, keys.DimensionOr("attention.head_count_kv", config.heads));
  RUNAHEAD_ASSIGN_OR_RETURN(config.norm_eps, keys.Float("attention.layer_norm_rms_epsilon"));
  config.rope_base = 10000.0f;
  if (keys.Has("rope.freq_base")) {
    RUNAHEAD_ASSIGN_OR_RETURN(config.rope_base, keys.Float("rope.freq_base"));
  }
  if (config.norm_eps < 0) return keys.Refuse("attention.layer_norm_rms_epsilon", "must not be negative");
  if (config.rope_base <= 0) return keys.Refuse("rope.freq_base", "must be positive");
  if (config.heads % config.kv_heads != 0) {
    return keys.Refuse("attention.head_count_kv",
                       absl::StrCat(config.kv_heads, " does not divide the ", config.heads, " heads"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.head_dim, keys.DimensionOr("attention.key_length", config.hidden / config.heads));
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t rotated, keys.DimensionOr("rope.dimension_count", config.head_dim));
  if (config.head_dim < 2 || config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0 || rotated != config.head_dim) {
    return keys.Refuse(
        "rope.dimension_count",
        absl::StrCat("head size ", config.head_dim, " with ", rotated,
                     " rotated dimensions is not supported; they must be equal, even and at most ", kMaxHeadDim));
  }
  if (keys.Has("expert_count")) return keys.Refuse("expert_count", "mixtures of experts are not supported");
  return config;
}

absl::StatusOr<std::vector<float>> LlamaRotation(const ModelFile& file, const ModelConfig& config) {
  const int64_t half = config.head_dim / 2;
  RUNAHEAD_ASSIGN_OR_RETURN(const float scale, LinearScale(ConfigKeys(file, "llama")));
  std::vector<float> factors(half, scale);
  if (file.FindTensor("rope_freqs.weight").ok()) {
    RUNAHEAD_ASSIGN_OR_RETURN(const FileTensor* tensor, file.FindTensor("rope_freqs.weight"));
    if (tensor->type != WeightType::kF32 || tensor->dims.empty() || tensor->dims[0] != half) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": tensor rope_freqs.weight is not f32 [", half, "]"));
    }
    std::vector<float> values(half);
    std::memcpy(values.data(), tensor->data.data(), half * sizeof(float));  // the file's alignment may be less
    for (int64_t d = 0; d < half; ++d) factors[d] *= values[d];
  }
  std::vector<float> table(static_cast<size_t>(config.context_length * config.head_dim));
  for (int64_t d = 0; d < half; ++d) {
    const float power = std::pow(config.rope_base, static_cast<float>(2 * d) / static_cast<float>(config.head_dim));
    const float frequency = 1.0f / power / factors[d];
    for (int64_t position = 0; position < config.context_length; ++position) {
      const float angle = static_cast<float>(position) * frequency;
      table[position * config.head_dim + d] = static_cast<float>(std::cos(static_cast<double>(angle)));
      table[position * config.head_dim + half + d] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return table;
}

}  // namespace runahead
