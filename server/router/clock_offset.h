// By how much another process's clock is ahead of ours, as pings tell.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Pure. All times are nanoseconds.
class ClockOffset {
 public:
  // By how much two clocks go apart at most: quartz is wrong by some 50 us a second, and NTP slews gently.
  static constexpr double kDrift = 1e-4;
  // The same over a time, whichever way it goes; rounded up.
  static int64_t DriftIn(int64_t time);
  static constexpr size_t kSamples = 16;

  // A ping left when our clock showed `sent`, its answer was here at `received`, and in between the other clock showed
  // `theirs`: at the middle, or off by half of the round trip at most, however unlike the two ways are. A sample that
  // cannot be of the same clock as those before, which has been set or is of another process, puts an end to those.
  void Add(int64_t sent, int64_t received, int64_t theirs);

  struct Estimate {
    int64_t offset = 0;  // theirs - ours
    int64_t error = 0;   // of it, at most
  };
  // When our clock shows `now`: the sample that bounds it best, the shortest round trip unless it was long ago. Nothing
  // without samples.
  std::optional<Estimate> At(int64_t now) const;

 private:
  struct Sample {
    int64_t at = 0;  // on our clock
    Estimate estimate;
  };
  std::deque<Sample> samples_;  // the latest last
};

// ClockOffset with the pings that it is made from. Thread-safe.
class PeerClock {
 public:
  void Asked(uint64_t ping, absl::Time now) RUNAHEAD_EXCLUDES(mu_);
  // `theirs_ns` is absl::ToUnixNanos of their clock; 0: they do not say. Pings may be answered late, or never. When the
  // ping was asked; nothing where that is forgotten.
  std::optional<absl::Time> Answered(uint64_t ping, int64_t theirs_ns, absl::Time now) RUNAHEAD_EXCLUDES(mu_);
  std::optional<ClockOffset::Estimate> At(absl::Time now) const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Ping {
    uint64_t number = 0;
    int64_t sent = 0;
  };
  mutable Mutex mu_;
  std::deque<Ping> under_way_ RUNAHEAD_GUARDED_BY(mu_);
  ClockOffset offset_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
