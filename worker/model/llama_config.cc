#include "worker/model/llama_config.h"

#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Larger sizes are not models, and their products would overflow.
constexpr int64_t kMaxDimension = int64_t{1} << 24;
// The rotation table has a row for each position and nothing in the file bounds it.
constexpr int64_t kMaxContext = int64_t{1} << 20;
constexpr int64_t kMaxHeadDim = 1024;

absl::StatusOr<int64_t> Dimension(const GgufFile& file, const std::string& key, int64_t max = kMaxDimension) {
  RUNAHEAD_ASSIGN_OR_RETURN(const uint64_t value, file.GetUint(key));
  if (value < 1 || value > static_cast<uint64_t>(max)) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": key ", key, ": ", value, " is not in 1 to ", max));
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<int64_t> DimensionOr(const GgufFile& file, const std::string& key, int64_t otherwise) {
  if (!file.Has(key)) return otherwise;
  return Dimension(file, key);
}

absl::Status Refuse(const GgufFile& file, const std::string& key, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": key ", key, ": ", why));
}

absl::StatusOr<float> LinearScale(const GgufFile& file) {
  const std::string key = "llama.rope.scaling.type";
  if (!file.Has(key)) return 1.0f;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string type, file.GetString(key));
  if (type == "none") return 1.0f;
  if (type != "linear") return Refuse(file, key, absl::StrCat("'", type, "' is not supported; none and linear are"));
  RUNAHEAD_ASSIGN_OR_RETURN(const double factor, file.GetFloat("llama.rope.scaling.factor"));
  if (!(factor >= 1.0)) return Refuse(file, "llama.rope.scaling.factor", "must be at least 1");
  return static_cast<float>(factor);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadLlamaConfig(const GgufFile& file) {
  ModelConfig config;
  if (file.Has("general.name")) {
    RUNAHEAD_ASSIGN_OR_RETURN(config.name, file.GetString("general.name"));
  }
  if (config.name.empty()) config.name = "llama";
  config.fingerprint = absl::StrFormat("%016x", file.fingerprint());
  RUNAHEAD_ASSIGN_OR_RETURN(config.layers, Dimension(file, "llama.block_count"));
  RUNAHEAD_ASSIGN_OR_RETURN(config.hidden, Dimension(file, "llama.embedding_length"));
  RUNAHEAD_ASSIGN_OR_RETURN(config.heads, Dimension(file, "llama.attention.head_count"));
  RUNAHEAD_ASSIGN_OR_RETURN(config.kv_heads, DimensionOr(file, "llama.attention.head_count_kv", config.heads));
  RUNAHEAD_ASSIGN_OR_RETURN(config.ffn, Dimension(file, "llama.feed_forward_length"));
  RUNAHEAD_ASSIGN_OR_RETURN(config.context_length, Dimension(file, "llama.context_length", kMaxContext));
  RUNAHEAD_ASSIGN_OR_RETURN(const double eps, file.GetFloat("llama.attention.layer_norm_rms_epsilon"));
  config.norm_eps = static_cast<float>(eps);
  config.rope_base = 10000.0f;
  if (file.Has("llama.rope.freq_base")) {
    RUNAHEAD_ASSIGN_OR_RETURN(const double base, file.GetFloat("llama.rope.freq_base"));
    config.rope_base = static_cast<float>(base);
  }
  if (config.norm_eps < 0) return Refuse(file, "llama.attention.layer_norm_rms_epsilon", "must not be negative");
  if (config.rope_base <= 0) return Refuse(file, "llama.rope.freq_base", "must be positive");
  if (config.heads % config.kv_heads != 0) {
    return Refuse(file, "llama.attention.head_count_kv",
                  absl::StrCat(config.kv_heads, " does not divide the ", config.heads, " heads"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.head_dim,
                            DimensionOr(file, "llama.attention.key_length", config.hidden / config.heads));
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t rotated, DimensionOr(file, "llama.rope.dimension_count", config.head_dim));
  if (config.head_dim < 2 || config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0 || rotated != config.head_dim) {
    return Refuse(
        file, "llama.rope.dimension_count",
        absl::StrCat("head size ", config.head_dim, " with ", rotated,
                     " rotated dimensions is not supported; they must be equal, even and at most ", kMaxHeadDim));
  }
  if (file.Has("llama.expert_count"))
    return Refuse(file, "llama.expert_count", "mixtures of experts are not supported");
  RUNAHEAD_ASSIGN_OR_RETURN(const GgufTensor* embedding, file.FindTensor("token_embd.weight"));
  if (embedding->dims.size() != 2 || embedding->dims[0] != config.hidden) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tensor token_embd.weight is not [", config.hidden, ", vocabulary]"));
  }
  config.vocab = embedding->dims[1];
  return config;
}

absl::StatusOr<std::vector<float>> LlamaRotation(const GgufFile& file, const ModelConfig& config) {
  const int64_t half = config.head_dim / 2;
  RUNAHEAD_ASSIGN_OR_RETURN(const float scale, LinearScale(file));
  std::vector<float> factors(half, scale);
  if (file.FindTensor("rope_freqs.weight").ok()) {
    RUNAHEAD_ASSIGN_OR_RETURN(const GgufTensor* tensor, file.FindTensor("rope_freqs.weight"));
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
