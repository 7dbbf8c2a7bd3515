// The bodies of the routes that generate nothing.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/calls.h"

namespace runahead {

// GET /v1/models: {"object":"list","data":[{"id","object","created","owned_by","max_model_len",...}]}, aliases too.
std::string ModelsJson(const v1::ListModelsResponse& models, const DoorFacts& facts, int64_t created);
// GET /v1/models/ID: that one of them. NOT_FOUND where there is none of this name.
absl::StatusOr<std::string> OneModelJson(const v1::ListModelsResponse& models, const DoorFacts& facts, int64_t created,
                                         absl::string_view id);

// POST /tokenize, with "prompt" or "messages" (vLLM's).
absl::StatusOr<v1::TokenizeRequest> ReadTokenizeRequest(absl::string_view body, const DoorFacts& facts);
// {"count","max_model_len","tokens"}.
std::string TokenizeJson(const v1::TokenizeResponse& response, int context_length);

// POST /detokenize: {"tokens":[..]} -> {"prompt"}.
absl::StatusOr<v1::DetokenizeRequest> ReadDetokenizeRequest(absl::string_view body, const DoorFacts& facts);
std::string DetokenizeJson(const v1::DetokenizeResponse& response);

}  // namespace runahead
