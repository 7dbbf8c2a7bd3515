#include "scheduler/recompute/kv_from.h"

#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/mha_costs.h"

namespace runahead {
namespace {

// l is min(n, 2n / (2 rho + 1)).
TEST(KvFrom, IsThreeQuartersOfWhatTheSolverRecomputesInWholeTiles) {
  EXPECT_EQ(KvFrom(testing::MhaCosts(0.25), std::nullopt, 4096), 3072);
  EXPECT_EQ(KvFrom(testing::MhaCosts(1.5), std::nullopt, 4096), 1536);
  EXPECT_EQ(KvFrom(testing::MhaCosts(1.5), std::nullopt, 4000), 1472);
  EXPECT_EQ(KvFrom(testing::MhaCosts(1000), std::nullopt, 4096), 0);
}

TEST(KvFrom, IsAtMostWhatIsRecomputedWhenCostsHaveMovedByAQuarter) {
  for (const double rho : {0.3, 0.5, 1.0, 2.0, 5.0}) {
    for (const int64_t prompt : {1024, 1500, 4096, 20'000}) {
      const int64_t from = KvFrom(testing::MhaCosts(rho), std::nullopt, prompt);
      EXPECT_EQ(from % kSplitTile, 0);
      const LaneShape later{.length = prompt + 1, .x_stored = prompt};
      EXPECT_GE(SolveLanes(SplitObjective::kStep, testing::MhaCosts(1.25 * rho), {&later, 1})->cuts[0].recomputed_end,
                from)
          << rho << ", " << prompt;
    }
  }
}

TEST(KvFrom, LeavesRoomForAHostLaneAndForCompany) {
  for (const double rho : {0.3, 1.0, 2.0}) {
    LaneCosts costs = testing::MhaCosts(rho);
    costs.project_s = 1e-3;
    costs.signal_s = 1e-4;
    costs.host_attend_s = 0.3 * costs.kv_bytes / costs.link_bytes_per_s;
    const int64_t from = KvFrom(costs, std::nullopt, 8192);
    EXPECT_GT(from, 0);
    for (const int64_t sequences : {1, 4, 32}) {
      const LaneShape later{.length = 8192, .x_stored = 8191, .resident_from = 8192 - 256};
      const std::vector<LaneShape> batch(static_cast<size_t>(sequences), later);
      const LanePlan plan = *SolveLanes(SplitObjective::kStep, costs, batch);
      EXPECT_GT(plan.rows.host, 0);
      EXPECT_GE(plan.rows.recomputed, sequences * from) << rho;
    }
  }
}

TEST(KvFrom, IsZeroForShortPrompts) {
  EXPECT_EQ(KvFrom(testing::MhaCosts(0.25), std::nullopt, 1023), 0);
  EXPECT_EQ(KvFrom(testing::MhaCosts(0.25), std::nullopt, 1024), 768);
}

TEST(KvFrom, IsZeroWhereXIsNoSmallerThanKvAsItIsStored) {
  LaneCosts costs = testing::MhaCosts(0.25);
  for (const double kv_bytes : {2000, 1100, 500}) {
    costs.kv_bytes = kv_bytes;
    EXPECT_EQ(KvFrom(costs, std::nullopt, 4096), 0);
    EXPECT_EQ(KvFrom(costs, 128, 4096), 0);
  }
}

TEST(KvFrom, IsAtMostAFixedSplitInWholeTiles) {
  EXPECT_EQ(KvFrom(testing::MhaCosts(1000), 128, 4096), 128);
  EXPECT_EQ(KvFrom(testing::MhaCosts(1000), 191, 4096), 128);
  EXPECT_EQ(KvFrom(testing::MhaCosts(1), 100'000, 700), 640);
  EXPECT_EQ(KvFrom(testing::MhaCosts(1), 0, 4096), 0);
  EXPECT_EQ(KvFrom(testing::MhaCosts(1), 63, 4096), 0);
}

}  // namespace
}  // namespace runahead
