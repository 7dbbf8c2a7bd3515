// Wakes, and what waits by them, in as many orders as come.
#include "server/task/wake.h"

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "server/task/run_here.h"
#include "server/task/thread_executor.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

Task<bool> Awaits(Wake& wake) {
  co_await wake.Wait();
  co_return true;
}

Task<absl::Time> AwaitsUntil(Wake& wake, Clock& clock, absl::Time until) {
  co_await wake.Until(clock, until);
  co_return clock.Now();
}

TEST(Wake, NewsBeforeTheWaitEndIt) {
  Wake wake;
  wake.Notify();
  wake.Notify();
  EXPECT_TRUE(RunHere(Awaits(wake)));
}

TEST(Wake, TheMomentEndsTheWait) {
  testing::FakeClock clock;
  Wake wake;
  const absl::Time until = clock.Now() + absl::Seconds(1);
  std::thread time([&] {
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(1));
  });
  EXPECT_EQ(RunHere(AwaitsUntil(wake, clock, until)), until);
  time.join();
  EXPECT_EQ(RunHere(AwaitsUntil(wake, clock, until)), until) << "it has passed already";
}

TEST(Wake, TheMachinesClockEndsTheWait) {
  Wake wake;
  const absl::Time until = RealClock().Now() + absl::Milliseconds(5);
  EXPECT_GE(RunHere(AwaitsUntil(wake, RealClock(), until)), until);
}

// A place where a value is left for the one that waits for it: it, and with it the place, goes at once, while who left
// it has not returned yet.
class Place {
 public:
  void Leave(int value) {
    MutexLock lock(mu_);
    value_ = value;
    wake_.Notify();
  }
  Task<int> Take() {
    while (Value() == 0) co_await wake_.Until(RealClock(), RealClock().Now() + absl::Microseconds(30));
    co_return Value();
  }

 private:
  int Value() {
    MutexLock lock(mu_);
    return value_;
  }

  Mutex mu_;
  int value_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  Wake wake_;
};

constexpr int kRounds = 300, kBranches = 8;

Task<> TakesMany(std::vector<std::atomic<Place*>>& places, std::atomic<int64_t>& sum) {
  for (std::atomic<Place*>& there : places) {
    auto place = std::make_unique<Place>();
    there = place.get();
    sum += co_await place->Take();
  }
}

TEST(Wake, NothingIsMissedAndNothingUsedAfterItsEnd) {
  std::vector<std::vector<std::atomic<Place*>>> places;
  for (int i = 0; i < kBranches; ++i) places.emplace_back(kRounds);
  std::atomic<int64_t> sum = 0;
  {
    ThreadExecutor executor("takers", 3);
    for (auto& own : places) executor.Start(TakesMany(own, sum));
    std::vector<std::thread> leavers;
    for (auto& own : places) {
      leavers.emplace_back([&own] {
        std::mt19937 random(1);
        for (std::atomic<Place*>& there : own) {
          while (there == nullptr) std::this_thread::yield();
          for (unsigned spin = random() % 4000; spin > 0; --spin) there.load();
          there.load()->Leave(1);
        }
      });
    }
    for (std::thread& leaver : leavers) leaver.join();
  }
  EXPECT_EQ(sum, kRounds * kBranches);
}

// Many tell one, in any order: it sees all that is told.
Task<> Counts(std::atomic<int>& told, Wake& wake, int until) {
  while (told < until) co_await wake.Wait();
}

TEST(Wake, ManyTellOne) {
  std::atomic<int> told = 0;
  Wake wake;
  ThreadExecutor executor("counter", 2);
  executor.Start(Counts(told, wake, 4 * kRounds));
  std::vector<std::thread> tellers;
  for (int i = 0; i < 4; ++i) {
    tellers.emplace_back([&] {
      for (int n = 0; n < kRounds; ++n) {
        ++told;
        wake.Notify();
      }
    });
  }
  for (std::thread& teller : tellers) teller.join();
}

}  // namespace
}  // namespace runahead
