#include "server/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace runahead {
namespace {

class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override {
    return start_ + absl::FromChrono(std::chrono::steady_clock::now() - start_monotonic_);
  }

  void WaitUntil(Mutex& mu, CondVar& changed, absl::Time until) override RUNAHEAD_REQUIRES(mu) {
    const absl::Duration left = until == absl::InfiniteFuture() ? absl::InfiniteDuration() : until - Now();
    if (left > absl::ZeroDuration()) changed.WaitFor(mu, left);
  }

 private:
  const absl::Time start_ = absl::Now();
  const std::chrono::steady_clock::time_point start_monotonic_ = std::chrono::steady_clock::now();
};

}  // namespace

Clock& RealClock() {
  static MonotonicClock* const clock = new MonotonicClock;  // never destroyed: threads may outlive main's statics
  return *clock;
}

}  // namespace runahead
