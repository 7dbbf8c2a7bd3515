// What a request says of its answers: how many, of how many tokens at least, and whether its prompt is scored.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

inline constexpr int32_t kMaxAnswers = 64;  // to one prompt

// Tokens of output for which there is to be room: none where the prompt is only scored.
int64_t LeastOutput(const v1::GenerateRequest& request);

// Of n and of prompt_logprobs. INVALID_ARGUMENT names the field.
absl::Status CheckAnswers(const v1::GenerateRequest& request);
absl::Status CheckPromptLogprobs(const v1::GenerateRequest& request);

}  // namespace runahead
