#include "worker/model/check_sampling.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace runahead {

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
  return require(s.logprobs >= -1 && s.logprobs <= kMostLogprobs, "logprobs", s.logprobs, "from 0 to 20, or absent");
}

}  // namespace runahead
