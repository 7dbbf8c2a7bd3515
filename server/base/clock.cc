#include "server/base/clock.h"

#include "kernels/base/monotonic.h"
#include "server/base/alarm_queue.h"

namespace runahead {
namespace {

class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override { return MonotonicNow(); }

  void WaitUntil(Mutex& mu, CondVar& changed, absl::Time until) override RUNAHEAD_REQUIRES(mu) {
    const absl::Duration left = until == absl::InfiniteFuture() ? absl::InfiniteDuration() : until - Now();
    if (left > absl::ZeroDuration()) changed.WaitFor(mu, left);
  }

  void Set(Alarm& alarm, absl::Time at) override { Alarms().Set(alarm, at); }
  void Unset(Alarm& alarm) override { Alarms().Unset(alarm); }

 private:
  // Never destroyed, as the clock; its thread starts with the first alarm.
  static AlarmQueue& Alarms() {
    static AlarmQueue* const alarms = new AlarmQueue;
    return *alarms;
  }
};

}  // namespace

Clock& RealClock() {
  static MonotonicClock* const clock = new MonotonicClock;  // never destroyed: threads may outlive main's statics
  return *clock;
}

}  // namespace runahead
