// What both routes have beside prompt and sampling: the model, streaming, choices.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/calls.h"
#include "server/gateway/openai/json_object.h"

namespace runahead {

// One request makes at most so many calls: its prompts times n.
inline constexpr int kMaxCalls = 128;
// Of all of them: each is a copy of its prompt.
inline constexpr size_t kMaxCallBytes = size_t{64} << 20;

struct ModelMember {
  std::string asked;   // for the call: empty for the model that is served
  std::string answer;  // as the answer names it
};

absl::StatusOr<ModelMember> ReadModel(JsonObject& body, const DoorFacts& facts);

// stream and stream_options.
absl::Status ReadStreaming(JsonObject& body, OpenAiCalls& calls);

// max_completion_tokens or, where that is absent, max_tokens; where both are, `otherwise`, of which 0 is all that the
// context leaves.
absl::Status ReadMaxTokens(JsonObject& body, int otherwise, v1::StopConditions& stop);

// Makes n calls of each of `prompts`, in order, each with a seed of its own where one is given. INVALID_ARGUMENT for
// more than kMaxCalls, or kMaxCallBytes.
absl::Status AddChoices(JsonObject& body, const std::vector<v1::GenerateRequest>& prompts, OpenAiCalls& calls);

inline constexpr size_t kMaxIgnored = 64;  // of names that are kept of a request

// Adds the members of the body that nobody has read.
void AddIgnored(const JsonObject& body, OpenAiCalls& calls);

}  // namespace runahead
