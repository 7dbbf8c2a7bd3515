// When a child that died is started again. Pure: time is an argument.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace runahead {

struct RestartLimits {
  absl::Duration pause = absl::Seconds(1);      // from the first death of a row to the next start; doubles with each
  absl::Duration max_pause = absl::Minutes(1);  // but is never longer
  absl::Duration healthy = absl::Minutes(1);    // who served for so long begins a new row
  int max_deaths = 5;                           // so many in a row are too many for those that may not go on dying
};

// Of one child.
class RestartPolicy {
 public:
  explicit RestartPolicy(RestartLimits limits) : limits_(limits) {}

  // When to start it again. `served`: for how long it had served, zero where it never came that far.
  absl::Time OnDeath(absl::Time now, absl::Duration served) {
    if (served >= limits_.healthy) deaths_ = 0;
    ++deaths_;
    absl::Duration pause = limits_.pause;
    for (int i = 1; i < deaths_ && pause < limits_.max_pause; ++i) pause *= 2;
    return now + std::min(pause, limits_.max_pause);
  }

  int deaths() const { return deaths_; }  // in a row
  bool too_many() const { return deaths_ >= limits_.max_deaths; }

 private:
  RestartLimits limits_;
  int deaths_ = 0;
};

}  // namespace runahead
