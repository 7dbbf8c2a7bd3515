#include "worker/model/llama_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/config_keys.h"
#include "worker/model/rotary.h"
#include "worker/model/windows.h"

namespace runahead {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

absl::Status ReadHeads(const ConfigKeys& keys, ModelConfig& config) {
  RUNAHEAD_ASSIGN_OR_RETURN(config.kv_heads, keys.DimensionOr("attention.head_count_kv", config.heads));
  if (config.heads % config.kv_heads != 0) {
    return keys.Refuse("attention.head_count_kv",
                       absl::StrCat(config.kv_heads, " does not divide the ", config.heads, " heads"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.head_dim, keys.DimensionOr("attention.key_length", config.hidden / config.heads));
  RUNAHEAD_ASSIGN_OR_RETURN(const int64_t of_values, keys.DimensionOr("attention.value_length", config.head_dim));
  if (of_values != config.head_dim) return keys.Refuse("attention.value_length", "differs from key_length");
  RUNAHEAD_ASSIGN_OR_RETURN(config.rotated, keys.DimensionOr("rope.dimension_count", config.head_dim));
  if (config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0 || config.rotated % 2 != 0 ||
      config.rotated > config.head_dim) {
    return keys.Refuse(
        "rope.dimension_count",
        absl::StrCat("head size ", config.head_dim, " with ", config.rotated,
                     " rotated dimensions is not supported; both must be even and at most ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

}  // namespace

const LlamaKind* LlamaKindOf(std::string_view architecture) {
  for (const LlamaKind& kind : kLlamaKinds) {
    if (kind.architecture == architecture) return &kind;
  }
  return nullptr;
}

absl::StatusOr<ModelConfig> ReadLlamaConfig(const ModelFile& file) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string architecture, file.GetString("general.architecture"));
  const ConfigKeys keys(file, architecture);
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, keys.Common());
  RUNAHEAD_RETURN_IF_ERROR(ReadHeads(keys, config));
  if (LlamaKindOf(architecture)->permuted && config.rotated != config.head_dim) {
    return keys.Refuse("rope.dimension_count", absl::StrCat(config.rotated, " of ", config.head_dim,
                                                            " dimensions rotated is not supported here; all are"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.norm_eps, keys.Float("attention.layer_norm_rms_epsilon"));
  if (config.norm_eps < 0) return keys.Refuse("attention.layer_norm_rms_epsilon", "must not be negative");
  config.rope_base = 10000.0f;
  if (keys.Has("rope.freq_base")) {
    RUNAHEAD_ASSIGN_OR_RETURN(config.rope_base, keys.Float("rope.freq_base"));
  }
  if (config.rope_base <= 0) return keys.Refuse("rope.freq_base", "must be positive");
  if (keys.Has("expert_count")) {
    RUNAHEAD_ASSIGN_OR_RETURN(const int64_t experts, keys.Number("expert_count"));
    if (experts > 0) return keys.Refuse("expert_count", "mixtures of experts are not supported");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.windows, ReadWindows(keys, config, 0));
  RUNAHEAD_RETURN_IF_ERROR(ReadRotary(keys, config.rope_base, config.rotated, config.context_length).status());
  return config;
}

absl::StatusOr<std::vector<float>> LlamaRotation(const ModelFile& file, const ModelConfig& config) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string architecture, file.GetString("general.architecture"));
  RUNAHEAD_ASSIGN_OR_RETURN(const Rotary rotary, ReadRotary(ConfigKeys(file, architecture), config.rope_base,
                                                            config.rotated, config.context_length));
  return RotationTable(rotary, config.context_length);
}

}  // namespace runahead
