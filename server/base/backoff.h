// When to try again what failed: after pauses that double.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace runahead {

// Pure: the time is an argument, on whatever clock the caller uses. For one thread at a time.
class Backoff {
 public:
  // The first pause, and what no pause is longer than; both above zero.
  Backoff(absl::Duration first, absl::Duration longest) : first_(first), longest_(longest) {}

  // It failed at `now`: due() is a pause later, twice as long as that of the failure before it.
  void Failed(absl::Time now) {
    pause_ = std::clamp(2 * pause_, first_, longest_);
    due_ = now + pause_;
  }
  // It works: the next pause is the first one again.
  void Worked() { pause_ = absl::ZeroDuration(); }

  // When to try again; the past where nothing has failed.
  absl::Time due() const { return due_; }

 private:
  absl::Duration first_, longest_;
  absl::Duration pause_ = absl::ZeroDuration();
  absl::Time due_ = absl::InfinitePast();
};

}  // namespace runahead
