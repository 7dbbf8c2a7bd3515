#include "worker/model/gemma_config.h"

#include <cmath>
#include <string>

#include "kernels/base/status_macros.h"
#include "worker/model/config_keys.h"
#include "worker/model/gemma.h"
#include "worker/model/windows.h"

namespace runahead {
namespace {

// The members, and what their files leave out.
struct GemmaKind {
  const char* architecture;
  int64_t pattern;                           // the last of so many layers is global
  float rope_base;                           // of global layers
  float attention_soft_cap, final_soft_cap;  // 0: none
  bool head_norm;                            // and a base of its own for local layers
  int64_t layers_of_27b;                     // whose scores are scaled by hidden/heads, and no key says so
};
constexpr GemmaKind kKinds[] = {{"gemma2", 2, 1e4f, 50, 30, false, 46}, {"gemma3", 6, 1e6f, 0, 0, true, 62}};

const GemmaKind& KindOf(const std::string& architecture) {
  return architecture == kKinds[0].architecture ? kKinds[0] : kKinds[1];
}

absl::StatusOr<float> SoftCap(const ConfigKeys& keys, const char* name, float otherwise) {
  if (!keys.Has(name)) return otherwise;
  return keys.NotNegative(name);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadGemmaConfig(const ConfigKeys& keys) {
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, keys.Common());
  RUNAHEAD_RETURN_IF_ERROR(keys.ReadHeads(config));
  RUNAHEAD_ASSIGN_OR_RETURN(config.norm_eps, keys.NotNegative("attention.layer_norm_rms_epsilon"));
  const GemmaKind& kind = KindOf(keys.architecture());
  RUNAHEAD_ASSIGN_OR_RETURN(config.rope_base, keys.RopeBase(kind.rope_base));
  RUNAHEAD_ASSIGN_OR_RETURN(config.windows, ReadWindows(keys, config, kind.pattern));
  RUNAHEAD_RETURN_IF_ERROR(ReadGemmaTraits(keys, config).status());
  return config;
}

absl::StatusOr<GemmaTraits> ReadGemmaTraits(const ConfigKeys& keys, const ModelConfig& config) {
  const GemmaKind& kind = KindOf(keys.architecture());
  GemmaTraits traits;
  traits.head_norm = kind.head_norm;
  traits.norm_plus = keys.file().container() == ModelFile::Container::kGguf ? 0 : 1;
  const bool by_hidden = config.layers == kind.layers_of_27b;
  const auto scaled = static_cast<float>(by_hidden ? config.hidden / config.heads : config.head_dim);
  RUNAHEAD_ASSIGN_OR_RETURN(traits.attention_scale, keys.FloatOr("attention.scale", 1 / std::sqrt(scaled)));
  if (!(traits.attention_scale > 0)) return keys.Refuse("attention.scale", "must be positive");
  RUNAHEAD_ASSIGN_OR_RETURN(traits.attention_soft_cap,
                            SoftCap(keys, "attn_logit_softcapping", kind.attention_soft_cap));
  RUNAHEAD_ASSIGN_OR_RETURN(traits.final_soft_cap, SoftCap(keys, "final_logit_softcapping", kind.final_soft_cap));
  RUNAHEAD_ASSIGN_OR_RETURN(traits.local, ReadLocalLayers(keys, config.layers, kind.pattern));
  RUNAHEAD_ASSIGN_OR_RETURN(traits.global_rotary,
                            ReadRotary(keys, config.rope_base, config.rotated, config.context_length));
  traits.local_rotary = traits.global_rotary;
  if (!kind.head_norm) return traits;
  RUNAHEAD_ASSIGN_OR_RETURN(const float local_base, keys.FloatOr("rope.freq_base_swa", 1e4f));
  if (!(local_base > 0)) return keys.Refuse("rope.freq_base_swa", "must be positive");
  RUNAHEAD_ASSIGN_OR_RETURN(const float magnitude, AttentionFactor(keys));
  traits.local_rotary = {.frequencies = PlainFrequencies(local_base, config.rotated), .magnitude = magnitude};
  return traits;
}

}  // namespace runahead
