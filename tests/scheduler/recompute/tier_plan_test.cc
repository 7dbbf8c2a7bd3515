#include "scheduler/recompute/tier_plan.h"

#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

// OPT-6.7B in 16 bits on an H100: 53 GB/s of link, 700 TFLOP/s, 3.35 TB/s of device memory.
LaneCosts OptOnH100() {
  LaneCosts costs;
  costs.link_bytes_per_s = 53e9;
  costs.kv_bytes = 2 * 4096 * 2;
  costs.x_bytes = 4096 * 2;
  costs.recompute_s = 4 * 4096.0 * 4096.0 / 700e12;
  costs.project_s = 12 * 4096.0 * 4096.0 * 2 / 3.35e12;  // a layer's weights
  costs.attend_s = costs.kv_bytes / 3.35e12;
  return costs;
}

TierBudget OptBudget(int64_t bytes) {
  return {.bytes = bytes, .layers = 32, .kv_bytes = 2 * 4096 * 2, .x_bytes = 4096 * 2};
}

std::vector<LaneShape> OptBatch(int64_t batch, int64_t x_stored) {
  return std::vector<LaneShape>(batch, LaneShape{.length = 1024, .x_stored = x_stored});
}

double Gain(const LaneCosts& costs, const TierBudget& budget, int64_t x_stored) {
  const double streamed_s = SmallestSplit(SplitObjective::kStep, costs, OptBatch(64, x_stored))->times.layer_s;
  return streamed_s / PlanTiers(SplitObjective::kStep, costs, budget, OptBatch(64, x_stored))->lanes.times.layer_s;
}

TEST(TierPlan, ThreeTiersGain3Point3WhereAWindowAloneGains1Point33) {
  EXPECT_NEAR(Gain(OptOnH100(), OptBudget(8 * kGiB), 1024), 3.3, 0.05);
  EXPECT_NEAR(Gain(OptOnH100(), OptBudget(8 * kGiB), 0), 4.0 / 3, 1e-9);
  // X alone holds twice the positions: all of the budget goes there.
  const TierPlan plan = *PlanTiers(SplitObjective::kStep, OptOnH100(), OptBudget(8 * kGiB), OptBatch(64, 1024));
  EXPECT_EQ(plan.x_tokens, 512);
  EXPECT_EQ(plan.window_tokens, 0);
  EXPECT_EQ(plan.bytes, 8 * kGiB);
  EXPECT_GT(plan.lanes.rows.x_streamed, 0);
  EXPECT_GT(plan.lanes.rows.streamed, 0);
  EXPECT_EQ(plan.lanes.rows.recomputed - plan.lanes.rows.x_streamed, 64 * 512);
}

// By hand, as shares of all KV: half of X is resident, e is streamed as KV, the rest of X travels. The link takes
// (0.5 - e) / 2 + e, the device rho (1 - e) when all else it does is free; both are the same at the optimum.
TEST(TierPlan, WithoutProjectionsAndAttentionThreeTiersGain3Point5) {
  LaneCosts costs = OptOnH100();
  costs.project_s = costs.attend_s = 0;
  const double rho = 4096 * 53e9 / 700e12;
  const double e = (rho - 0.25) / (rho + 0.5);
  EXPECT_NEAR(Gain(costs, OptBudget(8 * kGiB), 1024), 1 / (rho * (1 - e)), 0.005);
}

TEST(TierPlan, WithoutRoomThereIsNoTier) {
  const TierPlan plan = *PlanTiers(SplitObjective::kStep, OptOnH100(), OptBudget(0), OptBatch(4, 1024));
  EXPECT_EQ(plan.window_tokens, 0);
  EXPECT_EQ(plan.x_tokens, 0);
  EXPECT_EQ(plan.bytes, 0);
  const LanePlan step = *SolveLanes(SplitObjective::kStep, OptOnH100(), OptBatch(4, 1024));
  EXPECT_EQ(plan.lanes.cuts, step.cuts);
}

TEST(TierPlan, WhereAllKvFitsNothingIsStreamed) {
  const TierPlan plan = *PlanTiers(SplitObjective::kStep, OptOnH100(), OptBudget(32 * kGiB), OptBatch(64, 1024));
  EXPECT_EQ(plan.window_tokens, 1024);
  EXPECT_EQ(plan.x_tokens, 0);
  EXPECT_EQ(plan.bytes, 32 * kGiB);
  EXPECT_EQ(plan.lanes.rows, (LaneRows{.resident = 64 * 1024}));
  EXPECT_LT(PlanTiers(SplitObjective::kStep, OptOnH100(), OptBudget(32 * kGiB - 1), OptBatch(64, 1024))->window_tokens,
            1024);
}

TEST(TierPlan, StagingIsTakenFromTheBudget) {
  TierBudget budget = OptBudget(8 * kGiB);
  budget.staging_bytes = 1;
  const TierPlan plan = *PlanTiers(SplitObjective::kStep, OptOnH100(), budget, OptBatch(64, 1024));
  EXPECT_LE(plan.bytes, 8 * kGiB);
  EXPECT_LT(plan.x_tokens, 512);
}

// At a small scale against every window and every prefix in blocks.
TEST(TierPlan, EqualsAllWindowsAndPrefixesTried) {
  std::mt19937 random(5);
  const auto integer = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  const auto real = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  int with_x = 0, with_window = 0;
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    LaneCosts costs;
    costs.link_bytes_per_s = 1;
    costs.kv_bytes = 2;
    costs.x_bytes = real(0.5, 3);
    costs.recompute_s = real(0, 2);
    if (integer(0, 1) == 0) costs.project_s = real(0, 5);
    if (integer(0, 1) == 0) costs.host_attend_s = real(0, 4);
    std::vector<LaneShape> shapes(integer(1, 3), LaneShape{.piece_tokens = 4});
    for (LaneShape& shape : shapes) {
      shape.length = 4 * integer(1, 12);
      shape.x_stored = integer(0, 3) == 0 ? 0 : shape.length;
    }
    const TierBudget budget{
        .bytes = integer(0, 300), .layers = 2, .block_tokens = 4, .kv_bytes = 2, .x_bytes = costs.x_bytes};
    const TierPlan plan = *PlanTiers(SplitObjective::kStep, costs, budget, shapes, 2);
    double best = INFINITY;
    for (int64_t window = 0; window <= 48; window += 4) {
      for (int64_t prefix = 0; prefix <= 48; prefix += 4) {
        double bytes = 0;
        for (const LaneShape& shape : shapes) {
          const int64_t kv = std::min(window, shape.length);
          const int64_t x = std::min({prefix, shape.x_stored, shape.length - kv});
          bytes += 2 * (2 * static_cast<double>(kv) + costs.x_bytes * static_cast<double>(x));
        }
        if (bytes > static_cast<double>(budget.bytes)) continue;
        const auto tiered = WithTiers(shapes, window, prefix, budget.block_tokens);
        best = std::min(best, SolveLanes(SplitObjective::kStep, costs, tiered, 2)->times.layer_s);
      }
    }
    EXPECT_NEAR(plan.lanes.times.layer_s, best, 1e-9 * best) << "case " << i;
    EXPECT_LE(plan.bytes, budget.bytes);
    with_x += plan.x_tokens > 0;
    with_window += plan.window_tokens > 0;
  }
  EXPECT_GT(with_x, 200);
  EXPECT_GT(with_window, 800);
}

TEST(TierPlan, LongPrefixesAreFoundByHalvingTheStride) {
  std::vector<LaneShape> shapes(2, {.length = 100000, .x_stored = 100000});
  LaneCosts costs = OptOnH100();
  costs.recompute_s = 0;
  TierBudget budget = OptBudget(int64_t{32} * 2 * 256 * 8192 * 77);  // X of 77 blocks a sequence
  EXPECT_EQ(PlanTiers(SplitObjective::kStep, costs, budget, shapes)->x_tokens, 77 * 256);
}

TEST(TierPlan, RefusesABudgetBelowItsStaging) {
  TierBudget budget = OptBudget(1000);
  budget.staging_bytes = 4194304;
  const auto refused = [](const TierBudget& of, const char* text) {
    const absl::Status status = PlanTiers(SplitObjective::kStep, OptOnH100(), of, OptBatch(1, 0)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  refused(budget, "1000 bytes are less than what streaming a layer's chunk takes; 4194304 bytes or more work");
  const auto changed = [](auto change) {
    TierBudget of = OptBudget(kGiB);
    change(of);
    return of;
  };
  refused(changed([](TierBudget& b) { b.layers = 0; }), "layers: 0");
  refused(changed([](TierBudget& b) { b.block_tokens = 0; }), "block_tokens: 0");
  refused(changed([](TierBudget& b) { b.kv_bytes = 0; }), "kv_bytes: 0");
  refused(changed([](TierBudget& b) { b.x_bytes = NAN; }), "x_bytes: nan");
  refused(changed([](TierBudget& b) { b.staging_bytes = -1; }), "staging_bytes: -1");
}

// As the runtime holds it: a block of X that is not whole is not resident.
TEST(TierPlan, XIsResidentInWholeBlocks) {
  const std::vector<LaneShape> shapes = {{.length = 1024, .x_stored = 900}, {.length = 1024, .x_stored = 200}};
  const std::vector<LaneShape> tiered = WithTiers(shapes, 0, 1024, 256);
  EXPECT_EQ(tiered[0].x_resident, 768);
  EXPECT_EQ(tiered[1].x_resident, 0);
  EXPECT_EQ(WithTiers(shapes, 512, 1024, 256)[0].x_resident, 512) << "the window begins there";
}

}  // namespace
}  // namespace runahead
