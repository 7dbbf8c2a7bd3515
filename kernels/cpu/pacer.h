// One direction of an emulated link: copies take the time that the link would.
#pragma once

#include <cstddef>
#include <functional>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Shared by all streams that copy in its direction: it carries one piece of a copy at a time, so they share its speed.
// A copy takes its latency and then its bytes at the rate, at least. Thread-safe.
class Pacer {
 public:
  struct Clock {
    std::function<absl::Time()> now;
    std::function<void(absl::Time)> sleep_until;  // may return late
    std::function<void(absl::Time)> wait_until;   // returns when it is time, for the CPU's time at the end of the wait
  };
  static Clock SystemClock();

  // `gbps`: gigabits per second, above 0.
  Pacer(double gbps, absl::Duration latency, Clock clock);

  // From the next piece of a copy on; what is on its way keeps the rate that it has.
  void SetRate(double gbps) RUNAHEAD_EXCLUDES(mu_);

  // Copies `size` bytes, and returns when the link would have carried them.
  void Copy(const std::byte* from, std::byte* to, size_t size) RUNAHEAD_EXCLUDES(mu_);

  // Returns when the link would have carried `size` bytes of single loads and stores, which go between the pieces of
  // copies: after latency and bytes, and all copies that are not through yet are by so many bytes later.
  void Interleave(size_t size) RUNAHEAD_EXCLUDES(mu_);

 private:
  // When a copy that comes now begins.
  absl::Time Begin() RUNAHEAD_EXCLUDES(mu_);
  // Waits for the end of a copy.
  void End(absl::Time through) RUNAHEAD_EXCLUDES(mu_);
  // When a piece is through that may begin at `ready`; the link is its own from when it is free until then.
  absl::Time Occupy(absl::Time ready, absl::Duration latency, size_t bytes) RUNAHEAD_EXCLUDES(mu_);

  const absl::Duration latency_;
  const Clock clock_;
  Mutex mu_;
  double bytes_per_second_ RUNAHEAD_GUARDED_BY(mu_);
  absl::Time free_at_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfinitePast();
  // When the last copy returned, and how much later than the link had carried it.
  absl::Time returned_at_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Duration late_ RUNAHEAD_GUARDED_BY(mu_) = absl::ZeroDuration();
};

}  // namespace runahead
