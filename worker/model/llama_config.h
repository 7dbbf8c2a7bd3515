// What a model of the Llama family says about itself, checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/format/model_file.h"
#include "worker/model/config_keys.h"
#include "worker/model/model.h"
#include "worker/model/rotary.h"

namespace runahead {

// The architectures that are this family, by what general.architecture calls them, and in what they differ. What a file
// of any of them may have, they share: biases, windows, other forms of rotary positions, a head of its own.
struct LlamaKind {
  const char* architecture;
  bool qkv_bias = false;   // Q, K and V must have biases
  bool head_norm = false;  // each head of Q and K is normed before it is rotated
  bool permuted = false;   // in GGUF files rows of Q and K lie permuted for interleaved rotation
  bool fused = false;      // Q, K and V are one tensor, gate and up another
};
inline constexpr LlamaKind kLlamaKinds[] = {{.architecture = "llama", .permuted = true},  // Mistral's, too
                                            {.architecture = "qwen2", .qkv_bias = true},
                                            {.architecture = "qwen3", .head_norm = true},
                                            {.architecture = "phi3", .fused = true}};

// Null for another family.
const LlamaKind* LlamaKindOf(std::string_view architecture);

// INVALID_ARGUMENT, naming the key, for what this family's pass cannot run.
absl::StatusOr<ModelConfig> ReadLlamaConfig(const ConfigKeys& keys);

// Of a config that ReadLlamaConfig gave, which has asked for it already.
absl::StatusOr<Rotary> LlamaRotary(const ModelFile& file, const ModelConfig& config);

}  // namespace runahead
