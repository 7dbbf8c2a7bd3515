#include "scheduler/placement/ejection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace runahead {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

class EjectionTest : public ::testing::Test {
 protected:
  void Fail(int worker, int times = 1) {
    for (int i = 0; i < times; ++i) ejection_.Failed(worker, now_);
  }
  std::vector<bool> Ejected() const { return ejection_.Ejected(std::vector<bool>(4, true), now_); }
  // How long a worker stays out from now on.
  absl::Duration Sentence(int worker) {
    const absl::Time begin = now_;
    while (Ejected()[worker]) now_ += absl::Seconds(1);
    return now_ - begin;
  }

  Ejection ejection_{4};
  absl::Time now_ = kStart;
};

TEST_F(EjectionTest, FailuresInARowEjectAndOthersDoNot) {
  Fail(1, kFailuresInARow - 1);
  EXPECT_THAT(Ejected(), Each(false));
  ejection_.Succeeded(1);
  Fail(1, kFailuresInARow - 1);
  EXPECT_THAT(Ejected(), Each(false));
  Fail(1);
  EXPECT_THAT(Ejected(), ElementsAre(false, true, false, false));
}

TEST_F(EjectionTest, TheTimeGrowsWithEachRepetitionUpToTheLongest) {
  Fail(1, kFailuresInARow);
  EXPECT_EQ(Sentence(1), kFirstEjection);
  for (int n = 2; n <= 12; ++n) {
    Fail(1);  // once is enough for one that has not succeeded since
    EXPECT_EQ(Sentence(1), std::min(n * kFirstEjection, kLongestEjection)) << n;
  }
  ejection_.Succeeded(1);
  Fail(1, kFailuresInARow - 1);
  EXPECT_FALSE(Ejected()[1]);
  now_ += kLongestEjection;
  Fail(1);
  EXPECT_EQ(Sentence(1), kFirstEjection);  // it was well for long
}

TEST_F(EjectionTest, WhatFailsLateOfWhatItHadBeforeDoesNotProlongIt) {
  Fail(1, kFailuresInARow);
  now_ += kFirstEjection / 2;
  Fail(1, 3 * kFailuresInARow);
  EXPECT_EQ(Sentence(1), kFirstEjection / 2);
}

TEST_F(EjectionTest, AtMostHalfOfThoseThatAreReadyAreOutAndNeverTheLast) {
  for (const int worker : {2, 0, 3, 1}) {
    Fail(worker, kFailuresInARow);
    now_ += absl::Seconds(1);
  }
  EXPECT_THAT(Ejected(), ElementsAre(true, false, true, false));  // the first two that failed
  EXPECT_THAT(ejection_.Ejected({true, true, true, false}, now_), ElementsAre(false, false, true, false));
  EXPECT_THAT(ejection_.Ejected({true, false, true, false}, now_), ElementsAre(false, false, true, false));
  EXPECT_THAT(ejection_.Ejected({false, false, true, false}, now_), Each(false));
  EXPECT_THAT(ejection_.Ejected({false, false, false, false}, now_), Each(false));
}

TEST_F(EjectionTest, ANewProcessBeginsAnew) {
  Fail(1, kFailuresInARow);
  ejection_.Forget(1);
  EXPECT_THAT(Ejected(), Each(false));
  Fail(1, kFailuresInARow - 1);
  EXPECT_THAT(Ejected(), Each(false));
}

// Each worker gets `rounds` requests, of which the last one of them fails every third.
std::vector<bool> AfterRounds(int workers, int rounds, int others_fail_every) {
  Ejection ejection(workers);
  for (int round = 1; round <= rounds; ++round) {
    for (int worker = 0; worker < workers; ++worker) {
      const int every = worker + 1 == workers ? 3 : others_fail_every;
      if (round % every == 0) {
        ejection.Failed(worker, kStart);
      } else {
        ejection.Succeeded(worker);
      }
    }
  }
  return ejection.Ejected(std::vector<bool>(workers, true), kStart);
}

TEST(EjectionByRate, OneThatFailsMoreThanTheOthersIsOutWhereTheyAreEnough) {
  constexpr int kNever = 1 << 20;
  EXPECT_THAT(AfterRounds(5, 2 * kRatedRequests, kNever), ElementsAre(false, false, false, false, true));
  EXPECT_THAT(AfterRounds(4, 2 * kRatedRequests, kNever), Each(false));  // too few to compare with
  EXPECT_THAT(AfterRounds(5, kRatedRequests - 1, kNever), Each(false));  // too early
  EXPECT_THAT(AfterRounds(5, 2 * kRatedRequests, 4), Each(false));       // all of them are in trouble
}

}  // namespace
}  // namespace runahead
