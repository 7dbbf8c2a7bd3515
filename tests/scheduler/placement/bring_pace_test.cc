#include "scheduler/placement/bring_pace.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

TEST(BringPace, ExpectsNothingBeforeTheFirst) {
  EXPECT_EQ(BringPace().Expect(1000, kNow), absl::ZeroDuration());
}

TEST(BringPace, WhatIsBeyondTheRestIsOfWhatWasBrought) {
  BringPace pace;
  pace.Took(1000, absl::Seconds(1), absl::Seconds(3), kNow);
  EXPECT_EQ(pace.Expect(1000, kNow), absl::Seconds(2));
  EXPECT_EQ(pace.Expect(500, kNow), absl::Seconds(1));
}

TEST(BringPace, ARestThatHidAllOfItBringsItDown) {
  BringPace pace;
  pace.Took(1000, absl::Seconds(1), absl::Seconds(3), kNow);
  pace.Took(1000, absl::Seconds(1), absl::Milliseconds(900), kNow);
  EXPECT_EQ(pace.Expect(1000, kNow), absl::Milliseconds(1500)) << "a quarter of the way";
}

TEST(BringPace, IsForgottenSoThatItIsTriedAgain) {
  BringPace pace;
  pace.Took(1000, absl::Seconds(1), absl::Seconds(3), kNow);
  EXPECT_EQ(pace.Expect(1000, kNow + absl::Minutes(1)), absl::Seconds(1));
  EXPECT_LT(pace.Expect(1000, kNow + absl::Minutes(20)), absl::Milliseconds(1));
  EXPECT_EQ(pace.Expect(1000, kNow - absl::Minutes(1)), absl::Seconds(2)) << "a clock that stepped back";
}

TEST(BringPace, WhereTheRestIsNotKnownNothingIsLearned) {
  BringPace pace;
  pace.Took(1000, absl::ZeroDuration(), absl::Seconds(3), kNow);
  pace.Took(0, absl::Seconds(1), absl::Seconds(3), kNow);
  EXPECT_EQ(pace.Expect(1000, kNow), absl::ZeroDuration());
}

}  // namespace
}  // namespace runahead
