#include "kernels/cpu/pacer.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace runahead {
namespace {

// A clock that only moves when somebody sleeps.
struct ManualClock {
  absl::Time now = absl::UnixEpoch();
  int sleeps = 0;
  Pacer::Clock clock() {
    return {[this] { return now; },
            [this](absl::Time until) {
              ++sleeps;
              now = until;
            }};
  }
};

TEST(Pacer, TakesTheTimeThatTheLinkWould) {
  ManualClock manual;
  Pacer pacer(8, manual.clock());  // 8 gigabits: a gigabyte per second
  const absl::Time start = manual.now;
  for (int i = 0; i < 100; ++i) pacer.Carry(10'000'000);
  // The bus starts with a millisecond of credit.
  EXPECT_EQ(manual.now - start, absl::Milliseconds(999));
  EXPECT_EQ(manual.sleeps, 100);
}

TEST(Pacer, TimeSpentElsewhereCountsOnceAndIsNotSavedUp) {
  ManualClock manual;
  Pacer pacer(8, manual.clock());
  pacer.Carry(10'000'000);
  manual.now += absl::Milliseconds(4);  // the next copy itself
  absl::Time before = manual.now;
  pacer.Carry(10'000'000);
  EXPECT_EQ(manual.now - before, absl::Milliseconds(9));  // 10 less the credit: an idle bus saves nothing more
  manual.now += absl::Seconds(60);
  before = manual.now;
  pacer.Carry(10'000'000);
  EXPECT_EQ(manual.now - before, absl::Milliseconds(9));
}

TEST(Pacer, WithoutARateNothingWaits) {
  ManualClock manual;
  Pacer pacer(0, manual.clock());
  EXPECT_TRUE(pacer.unlimited());
  pacer.Carry(int64_t{1} << 40);
  EXPECT_EQ(manual.sleeps, 0);
}

TEST(Pacer, ThreadsShareOneLink) {
  Mutex mu;
  absl::Time latest = absl::UnixEpoch();
  Pacer pacer(8, {[] { return absl::UnixEpoch(); },
                  [&](absl::Time until) {
                    MutexLock lock(mu);
                    latest = std::max(latest, until);
                  }});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int piece = 0; piece < 10; ++piece) pacer.Carry(1'000'000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(latest - absl::UnixEpoch(), absl::Milliseconds(39));  // 40 MB in all, less the credit
}

}  // namespace
}  // namespace runahead
