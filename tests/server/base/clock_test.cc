#include "server/base/clock.h"

#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/await_change.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

TEST(RealClock, NeverGoesBackAndIsNearTheTimeOfDay) {
  const absl::Time first = RealClock().Now();
  EXPECT_LE(first, RealClock().Now());
  EXPECT_LT(absl::AbsDuration(absl::Now() - first), absl::Hours(1));
}

TEST(RealClock, WaitUntilReturnsAtTheMoment) {
  Mutex mu;
  CondVar changed;
  const absl::Time until = RealClock().Now() + absl::Milliseconds(5);
  MutexLock lock(mu);
  while (RealClock().Now() < until) RealClock().WaitUntil(mu, changed, until);
  RealClock().WaitUntil(mu, changed, absl::InfinitePast());  // does not wait at all
}

// Says when it rang.
class Bell final : public Alarm {
 public:
  void Await() {
    MutexLock lock(mu_);
    testing::ChangeWait wait("the alarm has rung");
    while (!rang_) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }
  bool rang() {
    MutexLock lock(mu_);
    return rang_;
  }

 private:
  void Ring() override {
    MutexLock lock(mu_);
    rang_ = true;
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  bool rang_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

TEST(RealClock, AlarmsRingInTheirOrderUnlessTheyAreUnset) {
  Bell unset, first, second, never, past;
  const absl::Time now = RealClock().Now();
  RealClock().Set(second, now + absl::Milliseconds(20));
  RealClock().Set(unset, now + absl::Milliseconds(15));
  RealClock().Set(first, now + absl::Milliseconds(10));
  RealClock().Set(never, absl::InfiniteFuture());
  RealClock().Set(past, absl::InfinitePast());
  RealClock().Unset(unset);
  const bool late = unset.rang();  // where this thread had no core for 15 ms
  past.Await();
  second.Await();
  EXPECT_GE(RealClock().Now(), now + absl::Milliseconds(20));
  EXPECT_TRUE(first.rang());
  EXPECT_EQ(unset.rang(), late);
  EXPECT_FALSE(never.rang());
  for (Bell* bell : {&first, &second, &never, &past}) RealClock().Unset(*bell);
}

TEST(FakeClock, WakesAWaiterOnlyWhenItsMomentCame) {
  testing::FakeClock clock;
  Mutex mu;
  CondVar changed;
  absl::Time woke;
  std::thread waiter([&] {
    const absl::Time until = clock.Now() + absl::Seconds(30);
    MutexLock lock(mu);
    while (clock.Now() < until) clock.WaitUntil(mu, changed, until);
    woke = clock.Now();
  });
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(29));
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(2));
  waiter.join();
  EXPECT_EQ(woke, absl::UnixEpoch() + absl::Seconds(31));
}

TEST(FakeClock, ANotificationEndsAWaitWithoutLimit) {
  testing::FakeClock clock;
  Mutex mu;
  CondVar changed;
  bool stop = false;
  std::thread waiter([&] {
    MutexLock lock(mu);
    while (!stop) clock.WaitUntil(mu, changed, absl::InfiniteFuture());
  });
  clock.AwaitWaiters(1);
  {
    MutexLock lock(mu);
    stop = true;
  }
  changed.NotifyAll();
  waiter.join();
}

}  // namespace
}  // namespace runahead
