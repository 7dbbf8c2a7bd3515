#include "server/base/core_waits.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/busy_cores.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::FakeClock;

class CoreWaitsTest : public ::testing::Test {
 protected:
  CoreWaitsTest() : threads_(absl::StrCat(::testing::TempDir(), "core-waits-XXXXXX")) {
    EXPECT_NE(mkdtemp(threads_.data()), nullptr);
  }
  ~CoreWaitsTest() override { std::filesystem::remove_all(threads_); }

  // Since its start.
  void Had(int thread, absl::Duration on_core, absl::Duration waited) {
    const std::string folder = absl::StrCat(threads_, "/", thread);
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/schedstat") << absl::ToInt64Nanoseconds(on_core) << " " << absl::ToInt64Nanoseconds(waited)
                                         << " 17\n";
  }
  absl::Duration AfterASecond(CoreWaits& waits) {
    clock_.Advance(absl::Seconds(1));
    waits.Look();
    return waits.Within(absl::Seconds(1));
  }

  std::string threads_;
  FakeClock clock_;
};

TEST_F(CoreWaitsTest, WhoeverSleepsOrIsFrozenWaitsForNoCore) {
  Had(1, absl::Hours(1), absl::Hours(2));
  CoreWaits waits(clock_, threads_);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(AfterASecond(waits), absl::ZeroDuration());
  EXPECT_EQ(waits.Within(absl::Hours(1)), absl::ZeroDuration());
}

TEST_F(CoreWaitsTest, TheShareOfATimeCountsInWhichThreadsWantedACoreAndHadNone) {
  Had(1, {}, {});
  Had(2, {}, {});
  CoreWaits waits(clock_, threads_);
  // Beside each other.
  Had(1, absl::Milliseconds(100), absl::Milliseconds(900));
  Had(2, absl::Milliseconds(100), absl::Milliseconds(900));
  EXPECT_EQ(AfterASecond(waits), absl::Milliseconds(900));
  // One after the other, and nobody wants a core for the rest of the time.
  Had(1, absl::Milliseconds(150), absl::Milliseconds(1150));
  Had(2, absl::Milliseconds(150), absl::Milliseconds(1150));
  EXPECT_EQ(AfterASecond(waits), absl::Milliseconds(500));
  EXPECT_EQ(waits.Within(absl::Seconds(2)), absl::Milliseconds(1400));
}

// So who hangs is known as such in the end, whatever the others do.
TEST_F(CoreWaitsTest, ThreadsThatAreMoreThanTheCoresDoNotWaitAllTheTime) {
  CoreWaits waits(clock_, threads_);
  for (int thread = 0; thread < 8; ++thread) Had(thread, absl::Milliseconds(250), absl::Milliseconds(750));
  EXPECT_EQ(AfterASecond(waits), absl::Milliseconds(750));
}

TEST_F(CoreWaitsTest, AWaitOfManyLooksCountsInFullWhenItHasEnded) {
  Had(1, {}, {});
  CoreWaits waits(clock_, threads_);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(AfterASecond(waits), absl::ZeroDuration());
  Had(1, {}, absl::Seconds(6));
  AfterASecond(waits);
  EXPECT_EQ(waits.Within(absl::Seconds(8)), absl::Seconds(6));
  EXPECT_EQ(waits.Within(absl::Seconds(2)), absl::Seconds(2));
}

TEST_F(CoreWaitsTest, AThreadThatHasTheIdOfAnEndedOneIsAnother) {
  Had(1, absl::Hours(1), absl::Hours(1));
  CoreWaits waits(clock_, threads_);
  Had(1, absl::Milliseconds(1), absl::Milliseconds(1));
  EXPECT_EQ(AfterASecond(waits), absl::Milliseconds(1));
}

TEST_F(CoreWaitsTest, WhereTheSystemDoesNotTellNothingIsWaited) {
  CoreWaits waits(clock_, "/nowhere");
  EXPECT_EQ(AfterASecond(waits), absl::ZeroDuration());
}

// Of this process: more threads want a core than there are.
TEST(CoreWaits, AreTheKernelsOfThisProcess) {
  if (!testing::TellsWaits()) GTEST_SKIP() << "the kernel does not tell";
  const testing::BusyCores busy;
  CoreWaits waits;
  while (waits.Within(absl::Hours(1)) < absl::Milliseconds(100)) waits.Look();
}

}  // namespace
}  // namespace runahead
