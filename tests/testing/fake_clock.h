// A clock that moves only when the test says so.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {

// Thread-safe. What waits on it must outlive a running Advance().
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch()) : now_(start) {}

  absl::Time Now() const override {
    MutexLock lock(mu_);
    return now_;
  }

  void WaitUntil(Mutex& mu, CondVar& changed, absl::Time until) override RUNAHEAD_REQUIRES(mu) {
    uint64_t id = 0;
    {
      MutexLock lock(mu_);
      if (now_ >= until) return;
      id = next_id_++;
      waiters_.push_back({id, &mu, &changed});
      waiters_changed_.NotifyAll();
    }
    changed.Wait(mu);
    MutexLock lock(mu_);
    std::erase_if(waiters_, [&](const Waiter& w) { return w.id == id; });
  }

  void Set(Alarm& alarm, absl::Time at) override RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (now_ >= at) return alarm.Ring();
    alarms_.push_back(&alarm);
    waiters_changed_.NotifyAll();
  }
  void Unset(Alarm& alarm) override RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::erase(alarms_, &alarm);
  }

  // Moves the time on and wakes everything that waits, so that it looks at the new time.
  void Advance(absl::Duration by) RUNAHEAD_EXCLUDES(mu_) {
    std::vector<Waiter> waiters;
    {
      MutexLock lock(mu_);
      now_ += by;
      waiters.swap(waiters_);  // AwaitWaiters counts those that have looked at the new time
      for (Alarm* alarm : std::exchange(alarms_, {})) alarm->Ring();
    }
    for (const Waiter& waiter : waiters) {
      MutexLock lock(*waiter.mu);  // not before it really waits, or the notification would be lost
      waiter.changed->NotifyAll();
    }
  }

  // Returns when at least `count` threads and alarms wait on this clock: what a test calls in place of a sleep before
  // Advance().
  void AwaitWaiters(int count) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ChangeWait wait(absl::StrCat(count, " threads and alarms wait on the fake clock"));
    while (static_cast<int>(waiters_.size() + alarms_.size()) < count) {
      if (!wait.Next(mu_, waiters_changed_)) return;
    }
  }

 private:
  struct Waiter {
    uint64_t id;
    Mutex* mu;
    CondVar* changed;
  };

  mutable Mutex mu_;
  CondVar waiters_changed_;
  absl::Time now_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<Waiter> waiters_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<Alarm*> alarms_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t next_id_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead::testing
