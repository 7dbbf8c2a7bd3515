// A line of the log about what floods this process: written once in a while, with how often it happened.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Thread-safe.
class RareLine {
 public:
  // One line in `period` at most.
  explicit RareLine(absl::Duration period) : period_(period) {}

  // It has happened. How often since the line was written last, this time included, where it is to be written now.
  std::optional<int64_t> Happened(absl::Time now = MonotonicNow()) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ++unsaid_;
    if (now < next_) return std::nullopt;
    next_ = now + period_;
    return std::exchange(unsaid_, 0);
  }

 private:
  const absl::Duration period_;
  Mutex mu_;
  absl::Time next_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfinitePast();
  int64_t unsaid_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
