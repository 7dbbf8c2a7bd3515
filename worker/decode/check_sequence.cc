#include "worker/decode/check_sequence.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

absl::Status CheckId(absl::string_view field, int32_t id, int64_t vocab) {
  if (id >= 0 && id < vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: is %d, and the token ids of this model are 0 to %d", field, id, vocab - 1));
}

// A NaN fails every comparison, so it is refused too.
absl::Status CheckSampling(const SamplingOptions& sampling) {
  const auto require = [](bool good, absl::string_view field, double value, absl::string_view range) {
    if (good) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat("sampling.%s: is %g, and must be %s", field, value, range));
  };
  const SamplingOptions& s = sampling;
  RUNAHEAD_RETURN_IF_ERROR(
      require(s.temperature >= 0 && s.temperature <= 100, "temperature", s.temperature, "from 0 to 100"));
  RUNAHEAD_RETURN_IF_ERROR(require(s.top_k >= 0, "top_k", s.top_k, "0 or more"));
  RUNAHEAD_RETURN_IF_ERROR(require(s.top_p > 0 && s.top_p <= 1, "top_p", s.top_p, "above 0 and at most 1"));
  RUNAHEAD_RETURN_IF_ERROR(require(s.min_p >= 0 && s.min_p < 1, "min_p", s.min_p, "at least 0 and below 1"));
  RUNAHEAD_RETURN_IF_ERROR(require(s.repetition_penalty > 0 && s.repetition_penalty <= 10, "repetition_penalty",
                                   s.repetition_penalty, "above 0 and at most 10"));
  RUNAHEAD_RETURN_IF_ERROR(
      require(std::abs(s.presence_penalty) <= 2, "presence_penalty", s.presence_penalty, "from -2 to 2"));
  RUNAHEAD_RETURN_IF_ERROR(
      require(std::abs(s.frequency_penalty) <= 2, "frequency_penalty", s.frequency_penalty, "from -2 to 2"));
  return require(s.logprobs >= -1 && s.logprobs <= 20, "logprobs", s.logprobs, "from 0 to 20, or absent");
}

}  // namespace

absl::Status CheckSequence(const DecodeSequence& sequence, const ModelConfig& model) {
  if (sequence.prompt_ids.empty()) {
    return absl::InvalidArgumentError("prompt_ids: is empty, and must hold the whole prompt");
  }
  for (size_t i = 0; i < sequence.prompt_ids.size(); ++i) {
    if (sequence.prompt_ids[i] < 0 || sequence.prompt_ids[i] >= model.vocab) {
      return CheckId(absl::StrCat("prompt_ids[", i, "]"), sequence.prompt_ids[i], model.vocab);
    }
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckId("first_token", sequence.first_token, model.vocab));
  if (sequence.max_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "max_tokens: is %d, and must be at least 1, for it counts the first token", sequence.max_tokens));
  }
  const int64_t prompt = static_cast<int64_t>(sequence.prompt_ids.size());
  if (prompt + sequence.max_tokens > model.context_length) {
    return absl::OutOfRangeError(
        absl::StrFormat("max_tokens: is %d after a prompt of %d tokens, and the model's context is %d tokens",
                        sequence.max_tokens, prompt, model.context_length));
  }
  return CheckSampling(sequence.sampling);
}

}  // namespace runahead
