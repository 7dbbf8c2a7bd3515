#include "kernels/cpu/pacer.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/monotonic.h"

namespace runahead {
namespace {

// A copy has the link for so many bytes at a time.
constexpr size_t kPiece = 256 << 10;
// A sleep ends so much late on an idle machine (Linux alone adds 50 us): that much of a wait is spent awake.
constexpr absl::Duration kSleepsLate = absl::Microseconds(60);
// On a busy machine it ends later still. A copy that follows at once was queued behind the one that returned late, and
// a link would have begun it on time: so it counts, up to what another thread's turn on the core takes. One that comes
// after a pause begins when it comes.
constexpr absl::Duration kAtOnce = absl::Microseconds(10);
constexpr absl::Duration kMostLate = absl::Milliseconds(5);

double BytesPerSecond(double gbps) {
  return gbps * 1e9 / 8;
}

}  // namespace

Pacer::Clock Pacer::SystemClock() {
  return {[] { return MonotonicNow(); }, [](absl::Time until) { absl::SleepFor(until - MonotonicNow()); },
          [](absl::Time until) {
            absl::SleepFor(until - MonotonicNow() - kSleepsLate);
            while (MonotonicNow() < until) std::this_thread::yield();
          }};
}

Pacer::Pacer(double gbps, absl::Duration latency, Clock clock)
    : latency_(latency), clock_(std::move(clock)), bytes_per_second_(BytesPerSecond(gbps)) {}

void Pacer::SetRate(double gbps) {
  MutexLock lock(mu_);
  bytes_per_second_ = BytesPerSecond(gbps);
}

void Pacer::Copy(const std::byte* from, std::byte* to, size_t size) {
  absl::Time through = Begin();
  absl::Duration latency = latency_;
  for (size_t done = 0; done < size; done += kPiece) {
    if (done > 0) clock_.sleep_until(through);
    const size_t bytes = std::min(kPiece, size - done);
    std::memcpy(to + done, from + done, bytes);  // its time is part of the link's
    // From one piece to the next there is no pause, however late the sleep ended.
    through = Occupy(through, std::exchange(latency, absl::ZeroDuration()), bytes);
  }
  End(through);
}

void Pacer::Interleave(size_t size) {
  absl::Time through = clock_.now() + latency_;
  {
    MutexLock lock(mu_);
    const absl::Duration takes = absl::Seconds(static_cast<double>(size) / bytes_per_second_);
    through += takes;
    free_at_ += takes;
  }
  if (clock_.now() < through) clock_.wait_until(through);
}

absl::Time Pacer::Begin() {
  MutexLock lock(mu_);
  const absl::Time now = clock_.now();
  if (now - returned_at_ > kAtOnce) late_ = absl::ZeroDuration();
  return now - late_;
}

absl::Time Pacer::Occupy(absl::Time ready, absl::Duration latency, size_t bytes) {
  MutexLock lock(mu_);
  free_at_ = std::max(free_at_, ready) + latency + absl::Seconds(static_cast<double>(bytes) / bytes_per_second_);
  return free_at_;
}

void Pacer::End(absl::Time through) {
  const bool waits = clock_.now() < through;
  if (waits) clock_.wait_until(through);
  MutexLock lock(mu_);
  returned_at_ = clock_.now();
  // Memory that is slower than the link gives no credit, only waking late does.
  late_ = std::clamp(returned_at_ - through, absl::ZeroDuration(), waits ? kMostLate : late_);
}

}  // namespace runahead
