#include "server/router/answers_check.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr int32_t kMaxPromptAlternatives = 20;

bool WantsNoOutput(const v1::GenerateRequest& request) {
  return request.stop().has_max_tokens() && request.stop().max_tokens() <= 0;
}

}  // namespace

int64_t LeastOutput(const v1::GenerateRequest& request) {
  return request.has_prompt_logprobs() && WantsNoOutput(request) ? 0 : 1;
}

absl::Status CheckAnswers(const v1::GenerateRequest& request) {
  if (!request.has_n()) return absl::OkStatus();
  if (request.n() < 1 || request.n() > kMaxAnswers) {
    return InvalidField("n", absl::StrCat(request.n(), " is not in [1, ", kMaxAnswers, "]"));
  }
  if (request.n() == 1) return absl::OkStatus();
  if (WantsNoOutput(request)) {
    return InvalidField("n", absl::StrCat(request.n(), " answers of no tokens: stop.max_tokens is 0"));
  }
  if (request.output_ids().empty()) return absl::OkStatus();
  return InvalidField("output_ids", absl::StrCat("they are of one answer, and n is ", request.n()));
}

absl::Status CheckPromptLogprobs(const v1::GenerateRequest& request) {
  if (!request.has_prompt_logprobs()) return absl::OkStatus();
  if (request.prompt_logprobs() < 0 || request.prompt_logprobs() > kMaxPromptAlternatives) {
    return InvalidField("prompt_logprobs",
                        absl::StrCat(request.prompt_logprobs(), " is not in [0, ", kMaxPromptAlternatives, "]"));
  }
  if (request.output_ids().empty()) return absl::OkStatus();
  return InvalidField("prompt_logprobs", "they came with the answer's begin, so they do not go with output_ids");
}

}  // namespace runahead
