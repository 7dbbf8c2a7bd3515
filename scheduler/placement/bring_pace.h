// What it took lately to bring KV of known tokens to chains that computed the rest of a prompt. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/time/time.h"

namespace runahead {

// For one thread at a time.
class BringPace {
 public:
  // A chain that began behind so many known tokens had its first token after `took`; the rest, of `rest_tokens`, was
  // expected to take `rest` alone. What is beyond that counts for what was brought: half as much as all before. A token
  // counts for at most twice what one of the rest takes: one chain that was held up, or the first one, which connects,
  // makes nobody compute for minutes what could be brought. Not above 0: nothing is known, and nothing learned.
  void Took(int64_t known, int64_t rest_tokens, absl::Duration rest, absl::Duration took, absl::Time now) {
    if (known < 1 || rest_tokens < 1 || rest <= absl::ZeroDuration() || took <= absl::ZeroDuration()) return;
    const double beyond =
        absl::ToDoubleSeconds(std::max(absl::ZeroDuration(), took - rest)) / static_cast<double>(known);
    const double most = 2 * absl::ToDoubleSeconds(rest) / static_cast<double>(rest_tokens);
    per_token_s_ = (SecondsPerToken(now) + std::min(beyond, most)) / 2;
    since_ = now;
  }

  // For so many, beside the rest.
  absl::Duration Expect(int64_t known, absl::Time now) const {
    return absl::Seconds(SecondsPerToken(now) * static_cast<double>(known));
  }

 private:
  // Half of it is forgotten after so long: what was slow for a while is tried again.
  static constexpr absl::Duration kHalfLife = absl::Minutes(1);

  double SecondsPerToken(absl::Time now) const {
    if (since_ == absl::InfinitePast()) return 0;
    return per_token_s_ * std::exp2(-absl::FDivDuration(std::max(absl::ZeroDuration(), now - since_), kHalfLife));
  }

  double per_token_s_ = 0;
  absl::Time since_ = absl::InfinitePast();
};

}  // namespace runahead
