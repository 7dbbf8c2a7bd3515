#include "worker/x_demand.h"

#include <gtest/gtest.h>

#include "tests/testing/mha_costs.h"

namespace runahead {
namespace {

TEST(XDemand, FollowsWhatStepsMeasureFromRequestToRequest) {
  XDemand demand(testing::MhaCosts(1), std::nullopt);
  EXPECT_TRUE(demand.KvFrom(4096).has_value());
  demand.SetCosts(testing::MhaCosts(20), 1, SplitRest::kNone);
  EXPECT_EQ(demand.KvFrom(4096), std::nullopt);
  demand.SetCosts(testing::MhaCosts(0.5), 1, SplitRest::kNone);
  EXPECT_TRUE(demand.KvFrom(4096).has_value());
}

TEST(XDemand, CountsTheCompanyOfTheLastStep) {
  LaneCosts costs = testing::MhaCosts(0.5);
  costs.project_s = 4e-3;  // longer than the link takes for 512 positions
  XDemand demand(costs, std::nullopt);
  demand.KvFrom(512);  // the first one has X in any case
  EXPECT_EQ(demand.KvFrom(512), std::nullopt);
  demand.SetCosts(costs, 7, SplitRest::kNone);
  EXPECT_TRUE(demand.KvFrom(512).has_value());
}

// A first step that has to recompute what it was handed as X takes longer than one that copies it, where lanes are not
// as the start's measurements say.
TEST(XDemand, AllKvIsNeededWhileTheSolversSplitDoesNotRun) {
  XDemand demand(testing::MhaCosts(0.5), std::nullopt);
  EXPECT_EQ(demand.KvFrom(4096), 0) << "start alone says that it gains";
  demand.SetCosts(testing::MhaCosts(0.5), 1, SplitRest::kNone);
  EXPECT_EQ(demand.KvFrom(4096), 3072);
  demand.SetCosts(testing::MhaCosts(1.5), 1, SplitRest::kMeasuring);  // a check within the run
  EXPECT_EQ(demand.KvFrom(4096), 1536);
  demand.SetCosts(testing::MhaCosts(1.5), 1, SplitRest::kSlower);
  EXPECT_EQ(demand.KvFrom(4096), 0);
}

TEST(XDemand, ASplitThatIsGivenHasItsX) {
  XDemand demand(testing::MhaCosts(1000), 128);
  EXPECT_EQ(demand.KvFrom(4096), 128);
}

// Nothing recomputes without X, and so nothing would tell that recomputation has become fast.
TEST(XDemand, TheFirstPromptAndOneInSixteenHaveXWhateverItGains) {
  XDemand demand(testing::MhaCosts(20), std::nullopt);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(demand.KvFrom(4096), 0);
    for (int64_t i = 1; i < XDemand::kAnyway; ++i) EXPECT_EQ(demand.KvFrom(4096), std::nullopt);
  }
}

TEST(XDemand, WithoutXNothingIsLostWhereNothingIsRecomputed) {
  XDemand demand(testing::MhaCosts(0.5), std::nullopt);
  EXPECT_EQ(demand.LostWithoutX(4096), 0) << "start alone says that it gains";
  demand.SetCosts(testing::MhaCosts(0.5), 0, SplitRest::kNone);
  EXPECT_NEAR(demand.LostWithoutX(4096), 4096 * 4e-6 / 2, 1e-9) << "half of all that the link carries";
  demand.SetCosts(testing::MhaCosts(0.5), 0, SplitRest::kMeasuring);
  EXPECT_GT(demand.LostWithoutX(4096), 0) << "a check within the run";
  demand.SetCosts(testing::MhaCosts(0.5), 0, SplitRest::kNoGain);
  EXPECT_EQ(demand.LostWithoutX(4096), 0);
  EXPECT_EQ(XDemand(testing::MhaCosts(0.5), 128).LostWithoutX(4096), 0) << "is taken whatever it gains";
}

TEST(XDemand, WhatIsLostIsBesideTheCompanyOfTheLastStep) {
  XDemand demand(testing::MhaCosts(5), std::nullopt);
  demand.SetCosts(testing::MhaCosts(5), 0, SplitRest::kNone);
  const double alone = demand.LostWithoutX(4096);
  demand.SetCosts(testing::MhaCosts(5), 7, SplitRest::kNone);
  EXPECT_LT(demand.LostWithoutX(4096), alone / 2) << "the others recompute more";
}

}  // namespace
}  // namespace runahead
