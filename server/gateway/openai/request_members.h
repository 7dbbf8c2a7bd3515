// What both routes have beside prompt and sampling: the model, streaming, choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runahead/v1/inference.pb.h"
#include "server/gateway/openai/calls.h"
#include "server/gateway/openai/json_object.h"

namespace runahead {

// One request has at most so many answers: its prompts times n.
inline constexpr int kMaxAnswers = 128;
// Of all its calls, each of which has what the request says beside its prompt, and of all echoes of their prompts.
inline constexpr size_t kMaxCallBytes = size_t{64} << 20;

struct ModelMember {
  std::string asked;   // for the call: empty for the model that is served
  std::string answer;  // as the answer names it
};

absl::StatusOr<ModelMember> ReadModel(JsonObject& body, const DoorFacts& facts);

// stream and stream_options.
absl::Status ReadStreaming(JsonObject& body, OpenAiCalls& calls);

// prompt_logprobs, behind stream, with which it does not go, and behind echo, whose alternatives it leaves.
absl::Status ReadPromptLogprobs(JsonObject& body, OpenAiCalls& calls, v1::GenerateRequest& request);

// max_completion_tokens or, where that is absent, max_tokens; where both are, `otherwise`, of which none is all that
// the context leaves. 0 only where the calls bring log probabilities of the prompt.
absl::Status ReadMaxTokens(JsonObject& body, std::optional<int64_t> otherwise, const OpenAiCalls& calls,
                           v1::StopConditions& stop);

// Makes a call with n answers of each of `prompts`, in order. INVALID_ARGUMENT for more than kMaxAnswers, or
// kMaxCallBytes.
absl::Status AddCalls(JsonObject& body, std::vector<v1::GenerateRequest> prompts, OpenAiCalls& calls);

inline constexpr size_t kMaxIgnored = 64;  // of names that are kept of a request

// Adds the members of the body that nobody has read.
void AddIgnored(const JsonObject& body, OpenAiCalls& calls);

}  // namespace runahead
