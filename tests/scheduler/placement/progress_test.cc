#include "scheduler/placement/progress.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

const absl::Time kAsked = absl::FromUnixSeconds(1'000'000);

ProgressView Computing(absl::Duration since, absl::Duration usual) {
  return {.computing = true, .since = since, .usual = usual, .done = 7};
}

TEST(Progress, ALayerMayTakeTenTimesWhatIsUsualAndFiveSecondsInAnyCase) {
  EXPECT_EQ(PatienceWith(Computing({}, absl::Milliseconds(20))), absl::Seconds(5));
  EXPECT_EQ(PatienceWith(Computing({}, absl::Seconds(3))), absl::Seconds(30));
  EXPECT_EQ(PatienceWith(Computing({}, absl::ZeroDuration())), absl::Seconds(5));
}

TEST(Progress, TheFirstOfASizeMayCompileKernels) {
  ProgressView first = Computing({}, absl::Milliseconds(20));
  first.first = true;
  EXPECT_EQ(PatienceWith(first), absl::Minutes(1));
  first.usual = absl::Seconds(20);
  EXPECT_EQ(PatienceWith(first), absl::Seconds(200));
  first.usual = absl::ZeroDuration();
  EXPECT_EQ(PatienceWith(first), absl::Minutes(10));
}

TEST(Progress, WhoGetsNothingDoneIsSuspectedFirstAndHangsThen) {
  ProgressJudge judge;
  EXPECT_EQ(judge.Judge(Computing(absl::Seconds(5), {}), kAsked), Liveness::kFine);
  EXPECT_EQ(judge.Judge(Computing(absl::Seconds(5.5), {}), kAsked), Liveness::kSuspected);
  EXPECT_EQ(judge.Judge(Computing(absl::Seconds(6), {}), kAsked + absl::Seconds(0.5)), Liveness::kSuspected);
  EXPECT_EQ(judge.Judge(Computing(absl::Seconds(6.5), {}), kAsked + absl::Seconds(1)), Liveness::kHung);
  EXPECT_EQ(judge.Judge(Computing(absl::Seconds(100), {}), kAsked + absl::Seconds(94)), Liveness::kHung);
  EXPECT_EQ(judge.Judge({.done = 8}, kAsked + absl::Seconds(95)), Liveness::kFine);
}

// It was stopped, with all of its machine: to it the time looks computed.
TEST(Progress, WhoGoesOnAfterALongStopIsNeverFoundToHang) {
  ProgressJudge judge;
  ProgressView progress = Computing(absl::Seconds(3600), absl::Milliseconds(20));
  EXPECT_EQ(judge.Judge(progress, kAsked), Liveness::kSuspected);
  progress.done = 8;
  progress.since = absl::Milliseconds(3);
  EXPECT_EQ(judge.Judge(progress, kAsked + absl::Seconds(0.5)), Liveness::kFine);
  // Nor is a worker suspected whose layers take too long, but end.
  for (int layer = 0; layer < 20; ++layer) {
    progress.done = 10 + layer;
    progress.since = absl::Seconds(6);
    EXPECT_EQ(judge.Judge(progress, kAsked + absl::Seconds(layer)), Liveness::kSuspected);
  }
}

// Eight processes that come first had the cores.
TEST(Progress, TimeInWhichItsThreadsWaitedForCoresDoesNotCount) {
  ProgressJudge judge;
  ProgressView starved = Computing(absl::Minutes(5), absl::Milliseconds(20));
  starved.waited = starved.since - absl::Seconds(5);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(judge.Judge(starved, kAsked + absl::Seconds(i)), Liveness::kFine);
  // What counts is the rest: one that hangs beside busy threads is known a little later.
  starved.since += absl::Seconds(1);
  EXPECT_EQ(judge.Judge(starved, kAsked + absl::Seconds(10)), Liveness::kSuspected);
  EXPECT_EQ(judge.Judge(starved, kAsked + absl::Seconds(11)), Liveness::kHung);
}

TEST(Progress, WhoWaitsIsFineHoweverLong) {
  ProgressJudge judge;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(judge.Judge({.computing = false, .done = 7}, kAsked + absl::Seconds(60 * i)), Liveness::kFine);
  }
}

}  // namespace
}  // namespace runahead
