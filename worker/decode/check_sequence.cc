#include "worker/decode/check_sequence.h"

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
