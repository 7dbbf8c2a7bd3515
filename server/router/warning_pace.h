// When the trouble that a worker makes is warned of: as it begins, and now and then while it lasts. Pure: time is an
// argument.
#pragma once

#include <map>

#include "absl/time/time.h"
#include "server/router/router_metrics.h"

namespace runahead {

// A worker that stays away is tried every second, and each time another text may come of it.
inline constexpr absl::Duration kWarnPeriod = absl::Minutes(1);

// Of one worker; for one thread at a time.
class WarningPace {
 public:
  // Whether to warn now of trouble that makes the worker this. `now` never goes back.
  bool Due(WorkerState trouble, absl::Time now) {
    const auto [last, begins] = last_.try_emplace(trouble, now);
    if (!begins && now - last->second < kWarnPeriod) return false;
    last->second = now;
    return true;
  }

  // It is over: what comes next begins.
  void Over() { last_.clear(); }

 private:
  std::map<WorkerState, absl::Time> last_;  // warned of
};

}  // namespace runahead
