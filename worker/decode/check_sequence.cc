#include "worker/decode/check_sequence.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "worker/model/check_sampling.h"

namespace runahead {
namespace {

absl::Status CheckId(absl::string_view field, int32_t id, int64_t vocab) {
  if (id >= 0 && id < vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: is %d, and the token ids of this model are 0 to %d", field, id, vocab - 1));
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
  const auto prompt = static_cast<int64_t>(sequence.prompt_ids.size());
  const auto output = static_cast<int64_t>(sequence.output_ids.size());
  for (int64_t i = 0; i < output; ++i) {
    const std::string in_all = absl::StrCat("prompt_ids[", prompt + i, "]");
    const std::string field = output == 1 ? absl::StrCat("first_token, or ", in_all, " with output_from") : in_all;
    RUNAHEAD_RETURN_IF_ERROR(CheckId(field, sequence.output_ids[i], model.vocab));
  }
  if (const int64_t least = std::max<int64_t>(1, output); sequence.max_tokens < least) {
    return absl::InvalidArgumentError(absl::StrFormat("max_tokens: is %d, and must be at least %d%s",
                                                      sequence.max_tokens, least,
                                                      output > 0 ? ", for it counts what the output has already" : ""));
  }
  if (prompt + sequence.max_tokens > model.context_length) {
    return absl::OutOfRangeError(
        absl::StrFormat("max_tokens: is %d after a prompt of %d tokens, and the model's context is %d tokens",
                        sequence.max_tokens, prompt, model.context_length));
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckSampling(sequence.sampling, model.vocab));
  return CheckDrawRules(sequence.rules, model.vocab);
}

}  // namespace runahead
