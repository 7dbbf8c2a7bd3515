// Members that the field knows and this door does not do.
#pragma once

#include "absl/status/status.h"
#include "server/gateway/openai/json_object.h"

namespace runahead {

// INVALID_ARGUMENT names the first member that asks for what is not supported; a value that asks for nothing passes
// (best_of 1, suffix "", ...). Members that are without effect (metadata, store, ...) pass as they are.
// All of them count as read.
absl::Status RefuseUnsupported(JsonObject& body, bool chat);

}  // namespace runahead
