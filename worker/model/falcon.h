// The Falcon family: LayerNorm, and attention and MLP beside each other on the same residual.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/model/config_keys.h"
#include "worker/model/model.h"
#include "worker/model/tensor_loader.h"

namespace runahead {

// As the members of a Family (model.cc): general.architecture `falcon`. INVALID_ARGUMENT, naming the key, for what this
// family's pass cannot run: blocks whose MLP follows attention, positions by ALiBi.
absl::StatusOr<ModelConfig> ReadFalconConfig(const ConfigKeys& keys);
absl::StatusOr<std::shared_ptr<const Model>> LoadFalcon(const TensorLoader& loader, ModelConfig config,
                                                        const std::function<void(int, int)>& progress);

}  // namespace runahead
