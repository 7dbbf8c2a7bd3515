// The OPT family: learned positions, LayerNorm before attention and MLP, biases, ReLU.
#pragma once

#include <functional>
#include <memory>

#include "worker/model/config_keys.h"
#include "worker/model/model.h"
#include "worker/model/tensor_loader.h"

namespace runahead {

// Names the key that is missing (NOT_FOUND), or with which this family cannot run (INVALID_ARGUMENT).
absl::StatusOr<ModelConfig> ReadOptConfig(const ConfigKeys& keys);

// As a Family's (model.cc), of a file that ReadOptConfig gave `config` for.
absl::StatusOr<std::shared_ptr<const Model>> LoadOpt(const TensorLoader& loader, ModelConfig config,
                                                     const std::function<void(int, int)>& progress);

}  // namespace runahead
