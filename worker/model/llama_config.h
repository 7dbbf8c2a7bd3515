// What a Llama-family GGUF says about itself, checked.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker/format/model_file.h"
#include "worker/model/model.h"

namespace runahead {

// INVALID_ARGUMENT, naming the key, for what this family's pass cannot run.
absl::StatusOr<ModelConfig> ReadLlamaConfig(const ModelFile& file);

// The table of Rotation: [context_length, head_dim] = (cos | sin) of position * frequency, with
// frequency_d = rope_base^(-2d/head_dim), divided by the file's own factor where it has them (Llama 3) or by the linear
// scale. Angles are rounded to f32 before cos and sin, as reference implementations do.
absl::StatusOr<std::vector<float>> LlamaRotation(const ModelFile& file, const ModelConfig& config);

}  // namespace runahead
