#include "scheduler/recompute/x_gain.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/testing/mha_costs.h"

namespace runahead {
namespace {

// l / n = min(1, 2 / (2 rho + 1)), and a row of X spares half of one of KV.
TEST(GainOfX, IsThatOfThePipelinedStep) {
  for (const double rho : {0.25, 0.5, 1.0, 2.0, 5.0, 20.0}) {
    const double share = std::min(1.0, 2 / (2 * rho + 1));
    EXPECT_NEAR(GainOfX(testing::MhaCosts(rho), 4, 16'384), 1 / (1 - share / 2), 0.01) << rho;
  }
  EXPECT_LT(GainOfX(testing::MhaCosts(5.5), 32, 4096), kLeastGainOfX);
  EXPECT_GT(GainOfX(testing::MhaCosts(4.5), 32, 4096), kLeastGainOfX);
}

// A step that its projections make as long as it is gains nothing; those are of all sequences together.
TEST(GainOfX, GrowsWithCompanyAndLength) {
  LaneCosts costs = testing::MhaCosts(0.5);
  costs.project_s = 4e-3;
  EXPECT_EQ(GainOfX(costs, 1, 512), 1);
  EXPECT_GT(GainOfX(costs, 8, 512), 1.3);
  EXPECT_GT(GainOfX(costs, 1, 4096), 1.3);
}

TEST(GainOfX, IsNothingWhereXIsNoSmaller) {
  LaneCosts costs = testing::MhaCosts(0.1);
  costs.x_bytes = costs.kv_bytes;
  EXPECT_EQ(GainOfX(costs, 4, 4096), 1);
}

// Where all windows have room a fast host lane may leave nothing to gain; where they have none X is all there is.
TEST(GainOfX, IsReckonedWithoutAHostLane) {
  LaneCosts hosted = testing::MhaCosts(1);
  hosted.host_attend_s = 1e-9;
  EXPECT_EQ(GainOfX(hosted, 4, 4096), GainOfX(testing::MhaCosts(1), 4, 4096));
}

// Alone, all KV is copied in place of what GainOfX says; the link takes 4 us for a position's.
TEST(LostWithoutX, AloneIsWhatGainOfXSays) {
  for (const double rho : {0.25, 1.0, 5.0}) {
    const LaneCosts costs = testing::MhaCosts(rho);
    const double without_s = 16'384 * costs.kv_bytes / costs.link_bytes_per_s;
    EXPECT_NEAR(LostWithoutX(costs, 1, 16'384), without_s - without_s / GainOfX(costs, 1, 16'384), 1e-9) << rho;
  }
}

// Where the device is idle the others recompute more. Where they recompute all there is, the step grows by all that
// one is spared.
TEST(LostWithoutX, OthersRecomputeMoreWhereTheyCan) {
  const LaneCosts slow = testing::MhaCosts(5);
  EXPECT_LT(LostWithoutX(slow, 8, 4096), 0.01 * LostWithoutX(slow, 1, 4096));
  const LaneCosts fast = testing::MhaCosts(0.01);
  EXPECT_NEAR(LostWithoutX(fast, 8, 4096), LostWithoutX(fast, 1, 4096), 1e-9);
  EXPECT_GT(LostWithoutX(fast, 1, 4096), 8e-3);
}

TEST(LostWithoutX, IsNothingWhereRecomputingGainsNothing) {
  LaneCosts costs = testing::MhaCosts(0.1);
  costs.x_bytes = costs.kv_bytes;
  EXPECT_EQ(LostWithoutX(costs, 4, 4096), 0);
}

}  // namespace
}  // namespace runahead
