#include "kernels/cpu/pacer.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/monotonic.h"

namespace runahead {
namespace {

// A sleep may end late by so much without the bus losing speed for good.
constexpr absl::Duration kCredit = absl::Milliseconds(1);

}  // namespace

Pacer::Clock Pacer::SystemClock() {
  return {[] { return MonotonicNow(); }, [](absl::Time until) { absl::SleepFor(until - MonotonicNow()); }};
}

Pacer::Pacer(double gbps, Clock clock) : bytes_per_second_(gbps * 1e9 / 8), clock_(std::move(clock)) {}

void Pacer::Carry(int64_t bytes) {
  if (unlimited()) return;
  absl::Time until;
  {
    MutexLock lock(mu_);
    free_at_ =
        std::max(free_at_, clock_.now() - kCredit) + absl::Seconds(static_cast<double>(bytes) / bytes_per_second_);
    until = free_at_;
  }
  if (until > clock_.now()) clock_.sleep_until(until);
}

}  // namespace runahead
