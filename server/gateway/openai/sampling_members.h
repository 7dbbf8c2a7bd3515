// How an answer is drawn and where it ends: the members that both routes have alike.
#pragma once

#include "absl/status/status.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/calls.h"
#include "server/gateway/openai/json_object.h"

namespace runahead {

// temperature, top_p, seed, presence_penalty, frequency_penalty, stop; of vLLM's additions top_k, min_p,
// repetition_penalty, stop_token_ids, ignore_eos and priority. What is absent is as the facts recommend it, else as the
// field has it: temperature 1. Ranges are left to the router, which says them. INVALID_ARGUMENT names the member.
absl::Status ReadSamplingMembers(JsonObject& body, const DoorFacts& facts, v1::GenerateRequest& request);

// Whether `stop` is one text, and no array of texts.
bool HasOneStop(JsonObject& body);

}  // namespace runahead
