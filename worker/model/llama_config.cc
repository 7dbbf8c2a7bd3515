#include "worker/model/llama_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/config_keys.h"
#include "worker/model/rotary.h"
#include "worker/model/windows.h"

namespace runahead {

const LlamaKind* LlamaKindOf(std::string_view architecture) {
  for (const LlamaKind& kind : kLlamaKinds) {
    if (kind.architecture == architecture) return &kind;
  }
  return nullptr;
}

absl::StatusOr<ModelConfig> ReadLlamaConfig(const ConfigKeys& keys) {
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, keys.Common());
  RUNAHEAD_RETURN_IF_ERROR(keys.ReadHeads(config));
  RUNAHEAD_ASSIGN_OR_RETURN(config.norm_eps, keys.NotNegative("attention.layer_norm_rms_epsilon"));
  if (LlamaKindOf(keys.architecture())->permuted && config.rotated != config.head_dim) {
    return keys.Refuse("rope.dimension_count", absl::StrCat(config.rotated, " of ", config.head_dim,
                                                            " dimensions rotated is not supported here; all are"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.rope_base, keys.RopeBase(10000));
  if (keys.Has("expert_count")) {
    RUNAHEAD_ASSIGN_OR_RETURN(const int64_t experts, keys.Number("expert_count"));
    if (experts > 0) return keys.Refuse("expert_count", "mixtures of experts are not supported");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(config.windows, ReadWindows(keys, config, 0));
  RUNAHEAD_RETURN_IF_ERROR(ReadRotary(keys, config.rope_base, config.rotated, config.context_length).status());
  return config;
}

absl::StatusOr<Rotary> LlamaRotary(const ModelFile& file, const ModelConfig& config) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string architecture, file.GetString("general.architecture"));
  return ReadRotary(ConfigKeys(file, architecture), config.rope_base, config.rotated, config.context_length);
}

}  // namespace runahead
