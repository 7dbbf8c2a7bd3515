// The form that an answer is asked to have, in each of the ways in which the field asks for one.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/json_object.h"

namespace runahead {

// response_format; vLLM's structured_outputs, and its older guided_json, guided_json_object, guided_regex,
// guided_choice and guided_grammar. Sets request.structure where one of them asks for more than text, and returns which
// does; else nothing. What a form may be is left to the router, which says it. INVALID_ARGUMENT names the member, also
// of two that ask.
absl::StatusOr<std::string> ReadStructureMembers(JsonObject& body, v1::GenerateRequest& request);

}  // namespace runahead
