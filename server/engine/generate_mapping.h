// Requests of the engine protocol as requests of the public service.
#pragma once

#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace runahead {

// The request that means the same. INVALID_ARGUMENT names the field that has no meaning here; values that the public
// service refuses are left to it, which names its own fields. The request's ids and texts are moved out of it.
absl::StatusOr<v1::GenerateRequest> ToPublicRequest(vllm::grpc::engine::GenerateRequest& request);

}  // namespace runahead
