#include "scheduler/placement/pace_beside.h"

#include <cmath>

#include "gtest/gtest.h"

namespace runahead {
namespace {

const absl::Time kRowsNow = absl::FromUnixSeconds(1'800'000'000);

// Four times as long as expected.
void TookFourTimes(PaceBeside& pace, int64_t beside) {
  pace.Took(beside, absl::Seconds(1), absl::Seconds(4), kRowsNow);
}

TEST(PaceBeside, BelievesWhatIsExpectedBeforeTheFirst) {
  EXPECT_EQ(PaceBeside().Ratio(0, kRowsNow), 1);
  EXPECT_EQ(PaceBeside().Ratio(8, kRowsNow), 1);
}

TEST(PaceBeside, EachCountsForHalf) {
  PaceBeside pace;
  TookFourTimes(pace, 4);
  EXPECT_NEAR(pace.Ratio(4, kRowsNow), 2, 1e-9);
  for (int i = 0; i < 20; ++i) TookFourTimes(pace, 4);
  EXPECT_NEAR(pace.Ratio(4, kRowsNow), 4, 1e-3);
  for (int i = 0; i < 20; ++i) pace.Took(4, absl::Seconds(1), absl::Milliseconds(500), kRowsNow);
  EXPECT_NEAR(pace.Ratio(4, kRowsNow), 0.5, 1e-3) << "also what takes less";
}

TEST(PaceBeside, OfMoreItBelievesWhatItSawOfFewer) {
  PaceBeside pace;
  TookFourTimes(pace, 4);
  EXPECT_EQ(pace.Ratio(7, kRowsNow), pace.Ratio(4, kRowsNow)) << "within a factor of two";
  EXPECT_EQ(pace.Ratio(100, kRowsNow), pace.Ratio(4, kRowsNow));
  EXPECT_EQ(pace.Ratio(3, kRowsNow), 1);
  EXPECT_EQ(pace.Ratio(0, kRowsNow), 1);
}

TEST(PaceBeside, OneThatWasHeldUpForLongCountsForEightTimes) {
  PaceBeside pace;
  pace.Took(0, absl::Seconds(1), absl::Hours(1), kRowsNow);
  EXPECT_NEAR(pace.Ratio(0, kRowsNow), std::sqrt(8), 1e-9);
}

TEST(PaceBeside, IsForgottenSoThatItIsTriedAgain) {
  PaceBeside pace;
  for (int i = 0; i < 20; ++i) TookFourTimes(pace, 1);
  EXPECT_NEAR(pace.Ratio(1, kRowsNow + absl::Minutes(1)), 2, 1e-3);
  EXPECT_NEAR(pace.Ratio(1, kRowsNow + absl::Minutes(20)), 1, 1e-3);
  EXPECT_NEAR(pace.Ratio(1, kRowsNow - absl::Minutes(1)), 4, 1e-3) << "a clock that stepped back";
}

TEST(PaceBeside, WhereNextToNothingWasExpectedNothingIsLearned) {
  PaceBeside pace;
  pace.Took(0, absl::ZeroDuration(), absl::Seconds(1), kRowsNow);
  pace.Took(0, absl::Microseconds(500), absl::Seconds(1), kRowsNow);
  pace.Took(0, absl::Seconds(1), absl::ZeroDuration(), kRowsNow);
  pace.Took(-1, absl::Seconds(1), absl::Seconds(3), kRowsNow);
  EXPECT_EQ(pace.Ratio(0, kRowsNow), 1);
}

}  // namespace
}  // namespace runahead
