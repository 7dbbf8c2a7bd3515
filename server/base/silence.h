// How long somebody has been silent, as far as we were awake to hear it.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace runahead {

// Pure: time is an argument, on a monotonic clock. A process that was stopped, or a machine that slept, finds on waking
// a long time gone in which nobody could have been heard: that is not held against anyone. Silence begins anew with it.
class Silence {
 public:
  // How often Look is to be called. A look that comes later than kPause after the one before comes after a pause.
  static constexpr absl::Duration kLookPeriod = absl::Milliseconds(100);
  static constexpr absl::Duration kPause = absl::Seconds(1);

  explicit Silence(absl::Time now) : since_(now), looked_(now) {}

  void Heard(absl::Time now) { since_ = std::max(since_, now); }
  // Until now. True in `woke`, where given, after a pause of our own: what was asked before it is to be asked again.
  absl::Duration Look(absl::Time now, bool* woke = nullptr) {
    const bool paused = now - looked_ > kPause;
    if (paused) since_ = now;
    if (woke != nullptr) *woke = paused;
    looked_ = now;
    return now - since_;
  }

 private:
  absl::Time since_, looked_;
};

}  // namespace runahead
