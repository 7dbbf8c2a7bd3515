// The OPT family: learned positions, LayerNorm before attention and MLP, biases, ReLU.
#pragma once

#include <functional>
#include <memory>

#include "worker/model/model.h"

namespace runahead {

// Names the key that is missing (NOT_FOUND), or with which this family cannot run (INVALID_ARGUMENT).
absl::StatusOr<ModelConfig> ReadOptConfig(const ModelFile& file);

// As LoadModel, of a file that ReadOptConfig gave `config` for.
absl::StatusOr<std::shared_ptr<const Model>> LoadOpt(std::shared_ptr<const ModelFile> file, ModelConfig config,
                                                     std::shared_ptr<Device> device, unsigned uses,
                                                     const std::function<void(int, int)>& progress);

}  // namespace runahead
