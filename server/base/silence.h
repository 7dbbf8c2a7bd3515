// How long somebody has been silent, as far as we were awake and had read what came.
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "server/base/hearing.h"

namespace runahead {

// Pure: time is an argument, on a monotonic clock. A process that was stopped, or a machine that slept, finds on waking
// a long time gone in which nobody could have been heard: that is not held against anyone. Silence begins anew with it.
// Silence does not count, up to a bound, while we are behind with reading.
class Silence {
 public:
  // How often Look is to be called. A look that comes later than kPause after the one before comes after a pause.
  static constexpr absl::Duration kLookPeriod = absl::Milliseconds(100);
  static constexpr absl::Duration kPause = absl::Seconds(1);
  // Whoever is silent for less is not asked about: peers ping twice a second.
  static constexpr absl::Duration kNoticed = absl::Seconds(1);
  // We are taken to be behind by no more than this: whoever hangs is found some time, whatever strangers send us
  // meanwhile. 50,000 calls at once, of a router that had a tenth of two cores, were read within 10 s.
  static constexpr absl::Duration kLongestLag = absl::Seconds(12);

  // `hearing` outlives this.
  explicit Silence(absl::Time now, Hearing& hearing = AlwaysHears()) : hearing_(&hearing), since_(now), looked_(now) {}

  void Heard(absl::Time now) { since_ = std::max(since_, now); }
  // Until now, or until we are known to have heard all. True in `woke`, where given, after a pause of our own: what was
  // asked before it is to be asked again.
  absl::Duration Look(absl::Time now, bool* woke = nullptr) {
    const bool paused = now - looked_ > kPause;
    if (paused) since_ = now;
    if (woke != nullptr) *woke = paused;
    looked_ = now;
    if (now - since_ < kNoticed) return now - since_;
    const absl::Time until = std::max(hearing_->Until(now), now - kLongestLag);
    return std::max(until - since_, absl::ZeroDuration());
  }

 private:
  Hearing* hearing_;
  absl::Time since_, looked_;
};

}  // namespace runahead
