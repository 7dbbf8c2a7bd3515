#include "scheduler/placement/prefill_pace.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(PrefillPace, ExpectsNothingBeforeTheFirst) {
  EXPECT_EQ(PrefillPace().Expect(100), absl::ZeroDuration());
}

// By t(n) = a + b n + c n^2, which every prompt takes here, no expectation is above what its prompt takes.
TEST(PrefillPace, ExpectsNoMoreThanAPromptTakes) {
  const auto takes = [](int64_t n) { return absl::Seconds(0.25 + 1e-3 * double(n) + 1e-6 * double(n) * double(n)); };
  for (const int64_t seen : {1, 5, 100, 127, 4000}) {
    PrefillPace pace;
    pace.Took(seen, 1, takes(seen));
    for (int64_t tokens = 1; tokens < 10000; tokens += 7) {
      EXPECT_LE(pace.Expect(tokens), takes(tokens)) << tokens << " after " << seen;
    }
  }
}

TEST(PrefillPace, ALongPromptAfterAShortOneTakesAtLeastItsTime) {
  PrefillPace pace;
  pace.Took(5, 1, absl::Seconds(0.25));
  EXPECT_EQ(pace.Expect(4000), absl::Seconds(0.25)) << "not 800 times as long";
  pace.Took(3000, 1, absl::Seconds(9));
  EXPECT_EQ(pace.Expect(4000), absl::Seconds(9)) << "one of its class is closer";
}

TEST(PrefillPace, ALongPromptSaysNothingOfShortOnesButThatTheyTakeNoMore) {
  PrefillPace pace;
  pace.Took(4000, 1, absl::Seconds(8));
  EXPECT_EQ(pace.Expect(5), absl::ZeroDuration());
  pace.Took(5, 1, absl::Minutes(1));
  EXPECT_EQ(pace.Expect(5), absl::Seconds(8));
}

TEST(PrefillPace, OneThatWasSlowDoesNotStandForItsClass) {
  PrefillPace pace;
  pace.Took(100, 1, absl::Minutes(5));
  pace.Took(100, 1, absl::Seconds(1));
  pace.Took(100, 1, absl::Minutes(5));
  EXPECT_EQ(pace.Expect(100), absl::Seconds(1));
}

TEST(PrefillPace, EstimatesBetweenLengthsThatWereSeen) {
  PrefillPace pace;
  EXPECT_EQ(pace.Estimate(100), absl::ZeroDuration());
  pace.Took(100, 1, absl::Seconds(1));
  pace.Took(6400, 1, absl::Seconds(512));  // by the power of 1.5
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Estimate(400)), 8, 1e-6);
  EXPECT_EQ(pace.Estimate(100), absl::Seconds(1));
  EXPECT_EQ(pace.Estimate(6400), absl::Seconds(512));
  // One that was slow does not make shorter ones longer.
  pace.Took(200, 1, absl::Seconds(600));
  EXPECT_EQ(pace.Estimate(210), absl::Seconds(512));
}

TEST(PrefillPace, EstimatesBeyondThemInProportionAndNoLessThanAPassTakes) {
  PrefillPace pace;
  pace.Took(14, 1, absl::Seconds(1));
  EXPECT_EQ(pace.Estimate(32), absl::Seconds(1));
  EXPECT_EQ(pace.Estimate(320), absl::Seconds(10));
  EXPECT_EQ(pace.Estimate(1), absl::Seconds(1));
  PrefillPace of_long;
  of_long.Took(4000, 1, absl::Seconds(8));
  EXPECT_EQ(of_long.Estimate(1000), absl::Seconds(2));
  EXPECT_EQ(of_long.Estimate(1), of_long.Estimate(32));
}

TEST(PrefillPace, AChainsTimeIsNotOneWorkers) {
  PrefillPace pace;
  pace.Took(4000, 8, absl::Seconds(1));
  EXPECT_EQ(pace.Expect(4000), absl::Seconds(1));
  EXPECT_EQ(pace.Estimate(4000), absl::Seconds(1));
  EXPECT_EQ(pace.EstimateOnOne(4000), absl::Seconds(8)) << "at most";
  pace.Took(4000, 1, absl::Seconds(5));
  EXPECT_EQ(pace.EstimateOnOne(4000), absl::Seconds(5));
  EXPECT_EQ(pace.Estimate(4000), absl::Seconds(1));
}

TEST(PrefillPace, FollowsWhatChanges) {
  PrefillPace pace;
  pace.Took(100, 1, absl::Seconds(1));
  for (int i = 0; i < 8; ++i) pace.Took(100, 1, absl::Seconds(2));
  EXPECT_EQ(pace.Expect(100), absl::Seconds(2));
  pace.Took(0, 1, absl::Seconds(1));
  pace.Took(100, 1, absl::ZeroDuration());
  EXPECT_EQ(pace.Expect(100), absl::Seconds(2));
}

}  // namespace
}  // namespace runahead
