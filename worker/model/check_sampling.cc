#include "worker/model/check_sampling.h"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace runahead {

namespace {

absl::Status CheckId(const std::string& field, int32_t id, int64_t vocab) {
  if (id >= 0 && id < vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: is %d, and the token ids of this model are 0 to %d", field, id, vocab - 1));
}

absl::Status CheckBiases(const std::vector<LogitBias>& biases, int64_t vocab) {
  if (static_cast<int64_t>(biases.size()) > kMostBiases) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sampling.logit_bias: has %d ids, and at most %d may have one", biases.size(), kMostBiases));
  }
  for (const auto& [id, bias] : biases) {
    RUNAHEAD_RETURN_IF_ERROR(CheckId("sampling.logit_bias", id, vocab));
    if (bias >= -100 && bias <= 100) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("sampling.logit_bias[%d]: is %g, and must be from -100 to 100", id, bias));
  }
  return absl::OkStatus();
}

}  // namespace

// A NaN fails every comparison, so it is refused too.
absl::Status CheckSampling(const SamplingOptions& sampling, int64_t vocab) {
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
  RUNAHEAD_RETURN_IF_ERROR(
      require(s.logprobs >= -1 && s.logprobs <= kMostLogprobs, "logprobs", s.logprobs, "from 0 to 20, or absent"));
  return CheckBiases(s.logit_bias, vocab);
}

absl::Status CheckDrawRules(const DrawRules& rules, int64_t vocab) {
  if (rules.min_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rules.min_tokens: is %d, and must be 0 or more", rules.min_tokens));
  }
  for (const int32_t id : rules.end_ids) RUNAHEAD_RETURN_IF_ERROR(CheckId("rules.end_ids", id, vocab));
  if (static_cast<int64_t>(rules.bad_ids.size()) > kMostBadIds) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rules.bad_ids: has %d entries, and may have %d", rules.bad_ids.size(), kMostBadIds));
  }
  for (size_t i = 0; i < rules.bad_ids.size(); ++i) {
    const std::string field = absl::StrFormat("rules.bad_ids[%d]", i);
    const std::vector<int32_t>& ids = rules.bad_ids[i];
    if (ids.empty() || static_cast<int64_t>(ids.size()) > kLongestBadIds) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: has %d ids, and must have 1 to %d", field, ids.size(), kLongestBadIds));
    }
    for (const int32_t id : ids) RUNAHEAD_RETURN_IF_ERROR(CheckId(field, id, vocab));
  }
  return absl::OkStatus();
}

}  // namespace runahead
