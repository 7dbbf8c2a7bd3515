// Time as something that can be handed in: what reads a clock or waits for a moment takes a Clock, and its tests a
// FakeClock (tests/testing/fake_clock.h).
#pragma once

#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

// What a clock calls at a moment.
class Alarm {
 public:
  // Called under the clock's lock, on a thread of its own or on one that sets: must not block, nor use the clock.
  virtual void Ring() = 0;

 protected:
  ~Alarm() = default;

 private:
  friend class AlarmQueue;
  absl::Time at_ = absl::InfiniteFuture();  // as last set
};

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Never goes back.
  virtual absl::Time Now() const = 0;

  // Waits on `changed` until it is notified or `until` is reached, releasing `mu` meanwhile. May return early, so call
  // it in a loop that tests both the guarded condition and Now(). absl::InfiniteFuture() waits for a notification.
  virtual void WaitUntil(Mutex& mu, CondVar& changed, absl::Time until) RUNAHEAD_REQUIRES(mu) = 0;

  // Rings `alarm` once when `at` is reached, at once where it is already, at absl::InfiniteFuture() never. It may ring
  // early, as WaitUntil may return. Set at most once until the next Unset, which must come before its end; it neither
  // rings nor will when that has returned.
  virtual void Set(Alarm& alarm, absl::Time at) = 0;
  virtual void Unset(Alarm& alarm) = 0;
};

// The machine's clock: the time of day at the first use, carried on by the monotonic clock, so that setting the time of
// day neither expires nor revives anything. Lives for the whole process.
Clock& RealClock();

}  // namespace runahead
