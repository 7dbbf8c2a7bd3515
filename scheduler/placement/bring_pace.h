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
  // A chain that began behind so many known tokens of a prompt had its first token after `took`. The rest was expected
  // to take `rest` alone, and all of the prompt, of prompt_tokens, `whole`. What is beyond the rest counts for what was
  // brought, as many tokens as there are: beside few it is of other things. Each counts for half as much as the one
  // behind it. A token counts for at most twice what one of the prompt takes: one chain that was held up, or the first
  // one, which connects, makes nobody compute for minutes what could be brought. Not above 0: nothing is known, and
  // nothing learned.
  void Took(int64_t known, int64_t prompt_tokens, absl::Duration whole, absl::Duration rest, absl::Duration took,
            absl::Time now) {
    if (known < 1 || prompt_tokens < 1 || whole <= absl::ZeroDuration()) return;
    if (rest <= absl::ZeroDuration() || took <= absl::ZeroDuration()) return;
    const double beyond =
        absl::ToDoubleSeconds(std::max(absl::ZeroDuration(), took - rest)) / static_cast<double>(known);
    const double most = 2 * absl::ToDoubleSeconds(whole) / static_cast<double>(prompt_tokens);
    const double before_s = Seconds(now);
    if (since_ == absl::InfinitePast()) tokens_ = static_cast<double>(known);
    beyond_s_ = (before_s + std::min(beyond, most) * static_cast<double>(known)) / 2;
    tokens_ = (tokens_ + static_cast<double>(known)) / 2;
    since_ = now;
  }

  // For so many, beside the rest.
  absl::Duration Expect(int64_t known, absl::Time now) const {
    return absl::Seconds(Seconds(now) / tokens_ * static_cast<double>(known));
  }

 private:
  // Half of it is forgotten after so long: what was slow for a while is tried again.
  static constexpr absl::Duration kHalfLife = absl::Minutes(1);

  double Seconds(absl::Time now) const {
    if (since_ == absl::InfinitePast()) return 0;
    return beyond_s_ * std::exp2(-absl::FDivDuration(std::max(absl::ZeroDuration(), now - since_), kHalfLife));
  }

  // Of the last ones, each counted for half as much as the one behind it.
  double beyond_s_ = 0;
  double tokens_ = 1;
  absl::Time since_ = absl::InfinitePast();
};

}  // namespace runahead
