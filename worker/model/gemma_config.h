// What a model of the Gemma family says about itself, checked.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/config_keys.h"
#include "worker/model/model.h"
#include "worker/model/rotary.h"

namespace runahead {

// In what the members of the family differ, beside ModelConfig.
struct GemmaTraits {
  bool head_norm = false;  // Gemma 3
  float attention_scale = 1;
  float attention_soft_cap = 0, final_soft_cap = 0;  // 0: none
  float norm_plus = 0;                               // what weights of norms lack in the file: GGUF's have it
  std::vector<bool> local;                           // by layer: seen through the window, and rotated by local_rotary
  Rotary global_rotary, local_rotary;
};

// Of a config that ReadGemmaConfig (gemma.h) gave, which has asked for them already.
absl::StatusOr<GemmaTraits> ReadGemmaTraits(const ConfigKeys& keys, const ModelConfig& config);

}  // namespace runahead
