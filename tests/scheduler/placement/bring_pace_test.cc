#include "scheduler/placement/bring_pace.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

// Of 1,000 known tokens and 500 others, which take a second alone: 2 ms a token.
void Took(BringPace& pace, absl::Duration took) {
  pace.Took(1000, 1500, absl::Seconds(3), absl::Seconds(1), took, kNow);
}

TEST(BringPace, ExpectsNothingBeforeTheFirst) {
  EXPECT_EQ(BringPace().Expect(1000, kNow), absl::ZeroDuration());
}

TEST(BringPace, WhatIsBeyondTheRestIsOfWhatWasBrought) {
  BringPace pace;
  Took(pace, absl::Seconds(3));
  EXPECT_EQ(pace.Expect(1000, kNow), absl::Seconds(1)) << "half of what the first one took";
  Took(pace, absl::Seconds(3));
  EXPECT_EQ(pace.Expect(1000, kNow), absl::Milliseconds(1500));
  EXPECT_EQ(pace.Expect(500, kNow), absl::Milliseconds(750));
}

TEST(BringPace, ARestThatHidAllOfItBringsItDown) {
  BringPace pace;
  Took(pace, absl::Seconds(3));
  Took(pace, absl::Milliseconds(900));
  EXPECT_EQ(pace.Expect(1000, kNow), absl::Milliseconds(500));
}

TEST(BringPace, OneThatWasHeldUpForLongCountsForTwiceWhatComputingTakes) {
  BringPace pace;
  Took(pace, absl::Hours(1));
  EXPECT_EQ(pace.Expect(1000, kNow), absl::Seconds(2)) << "as long as to compute them";
  Took(pace, absl::Hours(1));
  EXPECT_EQ(pace.Expect(1000, kNow), absl::Seconds(3)) << "where all are, it does not pay";
}

// A pass takes long for one token, too.
TEST(BringPace, ARestOfOneTokenThatWasHeldUpCountsNoMore) {
  BringPace pace;
  pace.Took(1000, 1001, absl::Seconds(2), absl::Milliseconds(500), absl::Hours(1), kNow);
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Expect(1000, kNow)), 2, 0.01) << "as long as to compute them";
}

// Of few tokens the time is of other things.
TEST(BringPace, TokensCountAlike) {
  BringPace pace;
  for (int i = 0; i < 20; ++i) Took(pace, absl::Milliseconds(1100));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(pace.Expect(1000, kNow)), 100, 0.1);
  pace.Took(50, 550, absl::Milliseconds(1100), absl::Seconds(1), absl::Milliseconds(1100), kNow);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(pace.Expect(1000, kNow)), 190, 1) << "2 ms a token of 50, 0.1 of 1,000";
}

TEST(BringPace, IsForgottenSoThatItIsTriedAgain) {
  BringPace pace;
  Took(pace, absl::Seconds(3));
  EXPECT_EQ(pace.Expect(1000, kNow + absl::Minutes(1)), absl::Milliseconds(500));
  EXPECT_LT(pace.Expect(1000, kNow + absl::Minutes(20)), absl::Milliseconds(1));
  EXPECT_EQ(pace.Expect(1000, kNow - absl::Minutes(1)), absl::Seconds(1)) << "a clock that stepped back";
}

TEST(BringPace, WhereTheRestIsNotKnownNothingIsLearned) {
  BringPace pace;
  pace.Took(1000, 1500, absl::Seconds(3), absl::ZeroDuration(), absl::Seconds(3), kNow);
  pace.Took(1000, 1500, absl::ZeroDuration(), absl::Seconds(1), absl::Seconds(3), kNow);
  pace.Took(0, 1500, absl::Seconds(3), absl::Seconds(1), absl::Seconds(3), kNow);
  pace.Took(1000, 0, absl::Seconds(3), absl::Seconds(1), absl::Seconds(3), kNow);
  EXPECT_EQ(pace.Expect(1000, kNow), absl::ZeroDuration());
}

}  // namespace
}  // namespace runahead
