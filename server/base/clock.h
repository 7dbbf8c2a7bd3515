// Time as something that can be handed in: what reads a clock or waits for a moment takes a Clock, and its tests a
// FakeClock (tests/testing/fake_clock.h).
#pragma once

#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Never goes back.
  virtual absl::Time Now() const = 0;

  // Waits on `changed` until it is notified or `until` is reached, releasing `mu` meanwhile. May return early, so call
  // it in a loop that tests both the guarded condition and Now(). absl::InfiniteFuture() waits for a notification.
  virtual void WaitUntil(Mutex& mu, CondVar& changed, absl::Time until) RUNAHEAD_REQUIRES(mu) = 0;
};

// The machine's clock: the time of day at the first use, carried on by the monotonic clock, so that setting the time of
// day neither expires nor revives anything. Lives for the whole process.
Clock& RealClock();

}  // namespace runahead
