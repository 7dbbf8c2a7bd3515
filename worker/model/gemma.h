// The Gemma family, 2 and 3: Llama's layers with norms behind attention and MLP, GELU, scaled embeddings, local layers
// between global ones; soft caps (2), head norms and two bases of rotation (3).
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/model/config_keys.h"
#include "worker/model/model.h"
#include "worker/model/tensor_loader.h"

namespace runahead {

// As the members of a Family (model.cc): general.architecture `gemma2` or `gemma3`. INVALID_ARGUMENT, naming the key,
// for what this family's pass cannot run.
absl::StatusOr<ModelConfig> ReadGemmaConfig(const ConfigKeys& keys);
absl::StatusOr<std::shared_ptr<const Model>> LoadGemma(const TensorLoader& loader, ModelConfig config,
                                                       const std::function<void(int, int)>& progress);

}  // namespace runahead
