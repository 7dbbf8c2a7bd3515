// An emulated bus between host and device: lets bytes through at a given rate.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

// One direction of the bus, shared by all streams that copy over it. Thread-safe.
class Pacer {
 public:
  struct Clock {
    std::function<absl::Time()> now;
    std::function<void(absl::Time)> sleep_until;
  };
  static Clock SystemClock();

  // `gbps` is in gigabits per second; 0 lets everything through at once.
  explicit Pacer(double gbps, Clock clock = SystemClock());

  // Returns when the bus has carried `bytes` after all that was asked for before. Call it after the copy itself, in
  // pieces, so that the time of the copy counts as time on the bus.
  void Carry(int64_t bytes) RUNAHEAD_EXCLUDES(mu_);
  bool unlimited() const { return bytes_per_second_ <= 0; }

 private:
  const double bytes_per_second_;
  const Clock clock_;
  Mutex mu_;
  absl::Time free_at_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace runahead
