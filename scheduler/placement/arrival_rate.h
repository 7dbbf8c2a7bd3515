// How often requests came lately. Pure: time is an argument.
#pragma once

#include <cmath>

#include "absl/time/time.h"

namespace runahead {

// An average that forgets: what was longer ago than kMemory counts for less than 1/e. Used by one thread at a time.
class ArrivalRate {
 public:
  static constexpr absl::Duration kMemory = absl::Seconds(20);

  void Count(absl::Time now) {
    Forget(now);
    per_second_ += 1 / absl::ToDoubleSeconds(kMemory);
  }
  // `now` never goes back.
  double PerSecond(absl::Time now) {
    Forget(now);
    return per_second_;
  }

 private:
  void Forget(absl::Time now) {
    per_second_ *= std::exp(-absl::FDivDuration(now - last_, kMemory));
    last_ = now;
  }

  double per_second_ = 0;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace runahead
