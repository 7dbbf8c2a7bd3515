// Time for tests of pacing.
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "kernels/cpu/pacer.h"

namespace runahead {

// A clock that only moves when somebody waits. For one thread at a time.
struct ManualClock {
  absl::Time now = absl::UnixEpoch();
  absl::Duration late = absl::ZeroDuration();  // that waits return
  int waits = 0;

  Pacer::Clock clock() {
    const auto wait = [this](absl::Time until) {
      ++waits;
      now = std::max(now, until + late);
    };
    return {[this] { return now; }, wait, wait};
  }
  // How long `action` takes.
  template <typename Action>
  absl::Duration Time(const Action& action) {
    const absl::Time before = now;
    action();
    return now - before;
  }
};

}  // namespace runahead
