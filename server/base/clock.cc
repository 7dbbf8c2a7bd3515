#include "server/base/clock.h"

#include "kernels/base/monotonic.h"

namespace runahead {
namespace {

class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override { return MonotonicNow(); }

  void WaitUntil(Mutex& mu, CondVar& changed, absl::Time until) override RUNAHEAD_REQUIRES(mu) {
    const absl::Duration left = until == absl::InfiniteFuture() ? absl::InfiniteDuration() : until - Now();
    if (left > absl::ZeroDuration()) changed.WaitFor(mu, left);
  }
};

}  // namespace

Clock& RealClock() {
  static MonotonicClock* const clock = new MonotonicClock;  // never destroyed: threads may outlive main's statics
  return *clock;
}

}  // namespace runahead
