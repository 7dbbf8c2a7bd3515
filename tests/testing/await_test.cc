#include "tests/testing/await.h"

#include <atomic>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {
namespace {

using ::testing::HasSubstr;

TEST(Await, LooksOnceWhereTheConditionHolds) {
  int looks = 0;
  EXPECT_TRUE(Await(
      "it has looked", [&] { return ++looks > 0; }, absl::ZeroDuration()));
  EXPECT_EQ(looks, 1);
}

TEST(Await, ReturnsWhenAnotherThreadHasMadeItTrue) {
  std::promise<void> looked;
  std::atomic<bool> there = false;
  std::thread other([&] {
    looked.get_future().wait();
    there = true;
  });
  int looks = 0;
  EXPECT_TRUE(Await("the other thread has heard of the first look", [&] {
    if (++looks == 1) looked.set_value();
    return there.load();
  }));
  other.join();
}

TEST(Await, SaysWhatHasNotCome) {
  const auto never = Await(
      "two streams are open", [] { return false; }, absl::Milliseconds(5));
  EXPECT_FALSE(never);
  EXPECT_THAT(std::string(never.message()), HasSubstr("waited 5ms in vain until: two streams are open"));
}

// Where this thread had no core until the patience was over.
TEST(Await, LooksOnceMoreAtTheEnd) {
  int looks = 0;
  EXPECT_TRUE(Await(
      "it has looked a second time",
      [&] {
        if (++looks == 1) absl::SleepFor(absl::Milliseconds(10));  // longer than the patience
        return looks > 1;
      },
      absl::Milliseconds(5)));
}

// A number that another thread sets.
class Counted {
 public:
  void Set(int value) {
    MutexLock lock(mu_);
    value_ = value;
    changed_.NotifyAll();
  }
  bool AwaitValue(int value, absl::Duration patience = LongestWait()) {
    MutexLock lock(mu_);
    ChangeWait wait("the number is " + std::to_string(value), patience);
    while (value_ != value) {
      if (!wait.Next(mu_, changed_)) return false;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int value_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

TEST(ChangeWait, ReturnsWhenAnotherThreadHasMadeItTrue) {
  Counted counted;
  EXPECT_TRUE(counted.AwaitValue(0, absl::ZeroDuration())) << "it is so already";
  std::thread other([&] {
    for (int i = 1; i <= 3; ++i) counted.Set(i);
  });
  EXPECT_TRUE(counted.AwaitValue(3));
  other.join();
}

TEST(ChangeWait, SaysWhatHasNotCome) {
  Counted counted;
  EXPECT_NONFATAL_FAILURE(EXPECT_FALSE(counted.AwaitValue(7, absl::Milliseconds(5))),
                          "waited 5ms in vain until: the number is 7");
}

TEST(Patience, IsScaledByOneVariable) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // the variable is read once in a process
  EXPECT_EQ(PatienceFactor(nullptr), 1);
  EXPECT_EQ(PatienceFactor("0.25"), 0.25);
  EXPECT_EXIT(
      {
        setenv("RUNAHEAD_TEST_PATIENCE", "2.5", 1);
        const bool scaled = Patience(absl::Seconds(2)) == absl::Seconds(5) && LongestWait() == absl::Seconds(150);
        std::exit(scaled ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(Patience, OfGarbageEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const char* garbage : {"", "three", "3x", "0", "-1", "nan", "inf"}) {
    EXPECT_DEATH(PatienceFactor(garbage), "RUNAHEAD_TEST_PATIENCE is '.*': it must be a positive number");
  }
}

}  // namespace
}  // namespace runahead::testing
