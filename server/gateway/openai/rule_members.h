// What an answer may and may not say, how much of a prompt counts and how long it may take: the members that both
// routes have alike.
#pragma once

#include "absl/status/status.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/json_object.h"

namespace runahead {

// logit_bias and user; of vLLM's additions min_tokens, bad_words and truncate_prompt_tokens; and timeout, in seconds.
// Ranges are left to the router, which says them. INVALID_ARGUMENT names the member.
absl::Status ReadRuleMembers(JsonObject& body, v1::GenerateRequest& request);

}  // namespace runahead
