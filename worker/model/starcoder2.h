// The StarCoder2 family: rotary positions, LayerNorm before attention and MLP, biases everywhere, GELU.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/model/config_keys.h"
#include "worker/model/model.h"
#include "worker/model/tensor_loader.h"

namespace runahead {

// As the members of a Family (model.cc): general.architecture `starcoder2`. INVALID_ARGUMENT, naming the key, for what
// this family's pass cannot run: heads that are rotated in part.
absl::StatusOr<ModelConfig> ReadStarcoder2Config(const ConfigKeys& keys);
absl::StatusOr<std::shared_ptr<const Model>> LoadStarcoder2(const TensorLoader& loader, ModelConfig config,
                                                            const std::function<void(int, int)>& progress);

}  // namespace runahead
