// Whether a child that died is started again, and when. Pure: time is an argument.
#pragma once

#include <deque>
#include <optional>

#include "absl/time/time.h"

namespace runahead {

struct RestartLimits {
  absl::Duration pause = absl::Seconds(1);  // from a death to the next start
  int max_deaths = 5;                       // this many within `window` are too many
  absl::Duration window = absl::Minutes(1);
};

// Of one child.
class RestartPolicy {
 public:
  explicit RestartPolicy(RestartLimits limits) : limits_(limits) {}

  // When to start it again; nothing when it has died too often. `now` never goes back.
  std::optional<absl::Time> OnDeath(absl::Time now) {
    deaths_.push_back(now);
    while (deaths_.front() <= now - limits_.window) deaths_.pop_front();
    if (static_cast<int>(deaths_.size()) >= limits_.max_deaths) return std::nullopt;
    return now + limits_.pause;
  }

 private:
  RestartLimits limits_;
  std::deque<absl::Time> deaths_;  // within the window, oldest first
};

}  // namespace runahead
