// The relations of KVPR's paper (arXiv 2411.17089) and the bounds of the step that we run.
#include "scheduler/recompute/split_solver.h"

#include <cmath>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/op_params.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr double kHidden = 4096;
constexpr double kLink = 32e9;

// A layer with 16 bits an element; rho: recomputing all K and V takes rho times as long as moving them, with MHA.
LaneCosts PaperCosts(double rho, double kv_dim = kHidden) {
  LaneCosts costs;
  costs.link_bytes_per_s = kLink;
  costs.kv_bytes = 2 * kv_dim * 2;
  costs.x_bytes = kHidden * 2;
  costs.recompute_s = rho * 2 * kHidden * 2 / kLink;
  return costs;
}

std::vector<LaneShape> EqualShapes(int64_t batch, int64_t length) {
  return std::vector<LaneShape>(batch, LaneShape{.length = length, .x_stored = length});
}

// With tiles of 1 the real optimum to a position.
double BestSplit(SplitObjective objective, const LaneCosts& costs, int64_t length) {
  return static_cast<double>(SolveLanes(objective, costs, EqualShapes(1, length), 1)->cuts[0].recomputed_end);
}

TEST(SplitSolver, ThePapersOptimumIsTheLengthOverOnePlusRhoWithOrWithoutX) {
  for (const double rho : {0.25, 0.5, 1.0, 2.0, 7.0}) {
    for (const int64_t length : {1000, 4096, 100000}) {
      const double expected = static_cast<double>(length) / (1 + rho);
      EXPECT_NEAR(BestSplit(SplitObjective::kRow, PaperCosts(rho), length), expected, 1) << rho;
      EXPECT_NEAR(BestSplit(SplitObjective::kColumn, PaperCosts(rho), length), expected, 1) << rho;
    }
  }
}

TEST(SplitSolver, RhoIsThePapersFormula) {
  // rho = 2 h v_com / (p v_gpu), recompute_s = 4 h^2 / v_gpu of a position, at p = 2.
  const double v_gpu = 150e12;
  LaneCosts costs = PaperCosts(0);
  costs.recompute_s = 4 * kHidden * kHidden / v_gpu;
  const double rho = 2 * kHidden * kLink / (2 * v_gpu);
  EXPECT_NEAR(BestSplit(SplitObjective::kColumn, costs, 100000), 100000 / (1 + rho), 1);
}

// KVPR's figure 12: an A100 over PCIe 4, h = 4,096; l grows with the sequence from a prompt of 256 to 288 tokens.
TEST(SplitSolver, GivesTheSplitsOfThePapersFigure) {
  LaneCosts costs = PaperCosts(0);
  costs.recompute_s = 4 * kHidden * kHidden / 312e12;
  EXPECT_EQ(BestSplit(SplitObjective::kColumn, costs, 257), 181);
  EXPECT_EQ(BestSplit(SplitObjective::kColumn, costs, 288), 203);
}

TEST(SplitSolver, PrefetchedXGivesTwiceTheLengthOverTwoRhoPlusOne) {
  for (const double rho : {0.25, 0.5, 1.0, 2.0, 7.0}) {
    const double length = 100000;
    const double expected = std::min(length, 2 * length / (2 * rho + 1));
    EXPECT_NEAR(BestSplit(SplitObjective::kPipelined, PaperCosts(rho), 100000), expected, 1) << rho;
  }
}

// kStep without its extras is kPipelined.
TEST(SplitSolver, WithFreeComputeMhaTakesHalfTheTimeAndNeverLess) {
  for (const SplitObjective objective : {SplitObjective::kPipelined, SplitObjective::kStep}) {
    for (const double rho : {0.0, 0.1, 0.5, 1.0, 4.0}) {
      const auto shapes = EqualShapes(8, 4096);
      const double least = SmallestSplit(objective, PaperCosts(rho), shapes)->times.layer_s;
      const double best = SolveLanes(objective, PaperCosts(rho), shapes)->times.layer_s;
      EXPECT_GE(best, least / 2);
      const double expected = rho <= 0.5 ? least / 2 : least * 2 * rho / (2 * rho + 1);
      EXPECT_NEAR(best, expected, 1e-3 * least) << rho;
    }
  }
}

TEST(SplitSolver, StreamedXNeverPaysWhereItIsNotSmallerThanKv) {
  for (const double kv_dim : {kHidden / 2, kHidden / 4, kHidden / 64}) {  // as large as X, GQA, MQA
    const LaneCosts costs = PaperCosts(0.001, kv_dim);
    for (const SplitObjective objective :
         {SplitObjective::kColumn, SplitObjective::kPipelined, SplitObjective::kStep}) {
      const LanePlan plan = *SolveLanes(objective, costs, EqualShapes(4, 4096));
      EXPECT_EQ(plan.rows.recomputed, 0) << SplitObjectiveName(objective) << " " << kv_dim;
      EXPECT_EQ(plan.rows.streamed, 4 * 4096);
    }
  }
  // 4 bits: KV of MHA is smaller than its X.
  LaneCosts costs = PaperCosts(0.001);
  costs.kv_bytes = static_cast<double>(KvQuantRowBytes(2 * 4096, {.bits = 4}));
  EXPECT_EQ(SolveLanes(SplitObjective::kStep, costs, EqualShapes(4, 4096))->rows.recomputed, 0);
}

TEST(SplitSolver, TheRowObjectiveChargesNoX) {
  EXPECT_NEAR(BestSplit(SplitObjective::kRow, PaperCosts(0.25, kHidden / 4), 1000), 500, 1);  // rho of its KV is 1
}

TEST(SplitSolver, ResidentXPaysForGqaToo) {
  auto shapes = EqualShapes(4, 4096);
  for (LaneShape& shape : shapes) shape.x_resident = 1024;
  const LanePlan plan = *SolveLanes(SplitObjective::kStep, PaperCosts(0.001, kHidden / 4), shapes);
  EXPECT_EQ(plan.rows.recomputed, 4 * 1024);
  EXPECT_EQ(plan.rows.x_streamed, 0);
  EXPECT_EQ(plan.rows.streamed, 4 * 3072);
}

// A window of one piece, so that there may be a host lane.
std::vector<LaneShape> HostShapes(int64_t batch, int64_t pieces, bool x) {
  const int64_t length = (pieces + 1) * 256;
  return std::vector<LaneShape>(batch,
                                LaneShape{.length = length, .x_stored = x ? length : 0, .resident_from = pieces * 256});
}

TEST(SplitSolver, WithFreeComputeMhaReachesTwiceTheLinkPlusTheHost) {
  for (const double host_share : {0.5, 1.0, 3.0}) {  // the host attends at so many times the link's speed
    LaneCosts costs = PaperCosts(0);
    costs.host_attend_s = costs.kv_bytes / (host_share * kLink);
    const LanePlan mha = *SolveLanes(SplitObjective::kStep, costs, HostShapes(16, 60, true));
    const double streamed_s =
        static_cast<double>(mha.rows.recomputed + mha.rows.streamed + mha.rows.host) * costs.kv_bytes / kLink;
    EXPECT_NEAR(mha.times.layer_s * (2 + host_share), streamed_s, 0.01 * streamed_s);
    EXPECT_EQ(mha.rows.streamed, 0);

    LaneCosts gqa = PaperCosts(0, kHidden / 4);
    gqa.host_attend_s = gqa.kv_bytes / (host_share * kLink);
    const LanePlan with_gqa = *SolveLanes(SplitObjective::kStep, gqa, HostShapes(16, 60, true));
    EXPECT_NEAR(with_gqa.times.layer_s * (1 + host_share), 16 * 60 * 256 * gqa.kv_bytes / kLink,
                0.01 * 16 * 60 * 256 * gqa.kv_bytes / kLink);
    EXPECT_EQ(with_gqa.rows.recomputed, 0);
  }
}

TEST(SplitSolver, CopiesAndHostLaneShareHostMemory) {
  LaneCosts costs = PaperCosts(0, kHidden / 4);
  costs.host_attend_s = costs.kv_bytes / (2 * kLink);
  costs.host_bytes_per_s = 2 * kLink;  // of 3 that both would take
  const LanePlan plan = *SolveLanes(SplitObjective::kStep, costs, HostShapes(16, 60, false));
  const double bytes = 16 * 60 * 256 * costs.kv_bytes;
  EXPECT_NEAR(plan.times.layer_s, bytes / (2 * kLink), 0.01 * bytes / (2 * kLink));
  EXPECT_GE(plan.times.layer_s, bytes / (2 * kLink));
}

TEST(SplitSolver, HasNoHostLaneBelowItsBreakEven) {
  LaneCosts costs = PaperCosts(0, kHidden / 4);
  costs.project_s = 300e-6;
  costs.signal_s = 50e-6;
  costs.host_attend_s = costs.kv_bytes / (4 * kLink);
  const double break_even = kLink * (costs.project_s + costs.signal_s);  // bytes of KV in a layer
  const auto pieces = static_cast<int64_t>(break_even / costs.kv_bytes / 256);
  ASSERT_GT(pieces, 4);
  for (int64_t n = 1; n <= pieces; ++n) {
    EXPECT_EQ(SolveLanes(SplitObjective::kStep, costs, HostShapes(1, n, false))->rows.host, 0) << n;
  }
  EXPECT_GT(SolveLanes(SplitObjective::kStep, costs, HostShapes(1, pieces + 3, false))->rows.host, 0);
}

TEST(SplitSolver, HasNoHostLaneWhereNoneIsOrTheNewestPieceIsNotResident) {
  LaneCosts costs = PaperCosts(0, kHidden / 4);
  EXPECT_EQ(SolveLanes(SplitObjective::kStep, costs, HostShapes(4, 60, false))->rows.host, 0);
  costs.host_attend_s = 0;
  EXPECT_GT(SolveLanes(SplitObjective::kStep, costs, HostShapes(4, 60, false))->rows.host, 0);
  EXPECT_EQ(SolveLanes(SplitObjective::kStep, costs, EqualShapes(4, 4096))->rows.host, 0);
  EXPECT_EQ(SolveLanes(SplitObjective::kPipelined, costs, HostShapes(4, 60, false))->rows.host, 0);
}

TEST(SplitSolver, WhatCrossesTheLinkBesidesMakesRecomputationWorthMore) {
  LaneCosts costs = PaperCosts(4);
  const auto shapes = EqualShapes(4, 4096);
  const int64_t without = SolveLanes(SplitObjective::kStep, costs, shapes)->rows.recomputed;
  costs.other_link_bytes = 400e6;
  EXPECT_GT(SolveLanes(SplitObjective::kStep, costs, shapes)->rows.recomputed, without + 1000);
}

TEST(SplitSolver, RoundsToTheBetterTile) {
  // l* = 1000 / (1 + rho); between tiles n and n + 1 the better one.
  for (const double rho : {0.9, 0.95, 1.0, 1.05, 1.1, 1.2}) {
    const LaneCosts costs = PaperCosts(rho);
    const LanePlan plan = *SolveLanes(SplitObjective::kRow, costs, EqualShapes(1, 1000));
    const int64_t l = plan.cuts[0].recomputed_end;
    EXPECT_EQ(l % 64, 0);
    const auto seconds = [&](double at) { return std::max(at * rho, 1000 - at); };
    const double best = 1000 / (1 + rho);
    const double below = std::floor(best / 64) * 64;
    EXPECT_DOUBLE_EQ(seconds(static_cast<double>(l)), std::min(seconds(below), seconds(below + 64)));
  }
}

// 13B's shape at 4,000 positions over a slow link: 62 tiles and a half.
TEST(SplitSolver, RecomputesThePartOfATileAtTheEndWhereTheEvaluatedTimeFalls) {
  constexpr double kWide = 5120;
  LaneCosts costs;
  costs.link_bytes_per_s = kLink;
  costs.kv_bytes = 2 * kWide * 2;
  costs.x_bytes = kWide * 2;
  costs.recompute_s = 4 * kWide * kWide / 700e12;
  for (const SplitObjective objective :
       {SplitObjective::kRow, SplitObjective::kColumn, SplitObjective::kPipelined, SplitObjective::kStep}) {
    LaneCosts fast = costs;
    if (objective == SplitObjective::kRow || objective == SplitObjective::kColumn) fast.recompute_s = 0;
    const LanePlan plan = *SolveLanes(objective, fast, EqualShapes(3, 4000));
    EXPECT_EQ(plan.rows.recomputed, 3 * 4000) << SplitObjectiveName(objective);
    EXPECT_EQ(plan.rows.computed, 3 * 4032);
  }
  // In the mean of a batch where the device has time for the ends of some sequences only.
  const int64_t computed = 3 * 3968 + 2 * 64;
  costs.recompute_s = (costs.x_bytes * (3 * 3968 + 2 * 32) + costs.kv_bytes * 32) / costs.link_bytes_per_s / computed;
  const LanePlan plan = *SolveLanes(SplitObjective::kStep, costs, EqualShapes(3, 4000));
  EXPECT_EQ(plan.rows.recomputed, 4000 + 4000 + 3968);
  EXPECT_EQ(plan.rows.computed, computed);
}

TEST(SplitSolver, RoundsTheEndUpOnlyWhereItPays) {
  // Recomputing a whole tile for one row more takes longer than copying the row.
  const LanePlan plan = *SolveLanes(SplitObjective::kStep, PaperCosts(0.5), EqualShapes(1, 4033));
  EXPECT_EQ(plan.cuts[0].recomputed_end, 4032);
}

TEST(SplitSolver, StaysBetweenTheSmallestSplitAndWhatXIsStoredFor) {
  LaneCosts costs = PaperCosts(0.01);
  std::vector<LaneShape> shapes = {{.length = 4000, .x_stored = 1000},
                                   {.length = 4000, .x_stored = 4000, .l_min = 100},
                                   {.length = 4000, .x_stored = 100, .l_min = 100}};
  const LanePlan fast = *SolveLanes(SplitObjective::kStep, costs, shapes);
  EXPECT_EQ(fast.cuts[0].recomputed_end, 1000);
  EXPECT_EQ(fast.cuts[1].recomputed_end, 4000);
  EXPECT_EQ(fast.cuts[2].recomputed_end, 100);  // no tile between: KV before it is nowhere
  EXPECT_EQ(fast.rows.computed - fast.rows.recomputed, 24 + 32 + 28);
  costs.recompute_s *= 1e6;
  const LanePlan slow = *SolveLanes(SplitObjective::kStep, costs, shapes);
  EXPECT_EQ(slow.cuts[0].recomputed_end, 0);
  EXPECT_EQ(slow.cuts[1].recomputed_end, 128);  // the tile that l_min needs
  EXPECT_EQ(slow.cuts[2].recomputed_end, 100);
  EXPECT_EQ(SmallestSplit(SplitObjective::kStep, PaperCosts(0.01), shapes)->cuts, slow.cuts);
}

// The paper's bound beside ours: l <= s, the prompt's length, where l <= s' may recompute what was generated too.
TEST(SplitSolver, StaysWithinThePromptWhereThatIsTheBound) {
  for (const SplitObjective objective :
       {SplitObjective::kRow, SplitObjective::kColumn, SplitObjective::kPipelined, SplitObjective::kStep}) {
    std::vector<LaneShape> shapes = EqualShapes(2, 512);
    EXPECT_EQ(SolveLanes(objective, PaperCosts(0), shapes)->cuts[0].recomputed_end, 512);
    shapes[0].x_stored = 300;  // ends within a tile
    const LanePlan plan = *SolveLanes(objective, PaperCosts(0), shapes);
    EXPECT_EQ(plan.cuts[0].recomputed_end, 300) << SplitObjectiveName(objective);
    EXPECT_EQ(plan.cuts[1].recomputed_end, 512);
  }
  // Where the best l lies within the prompt the bound changes nothing: figure 12 of the paper.
  LaneShape shape{.length = 288, .x_stored = 256};
  LaneCosts costs = PaperCosts(0);
  costs.recompute_s = 4 * kHidden * kHidden / 312e12;
  EXPECT_EQ(SolveLanes(SplitObjective::kColumn, costs, {&shape, 1}, 1)->cuts[0].recomputed_end, 203);
}

TEST(SplitSolver, WhatIsResidentNeedsNoX) {
  const std::vector<LaneShape> shapes = {{.length = 1024, .x_stored = 1024, .l_min = 1024, .resident_from = 512},
                                         {.length = 1024, .x_stored = 1024, .l_min = 1024, .resident_from = 0}};
  const LanePlan plan = *SolveLanes(SplitObjective::kStep, PaperCosts(1), shapes);
  EXPECT_EQ(plan.cuts[0], (LaneCuts{512, 512, 512}));
  EXPECT_EQ(plan.cuts[1], (LaneCuts{0, 0, 0}));
}

TEST(SplitSolver, ResidencyBetweenBordersCountsFromTheNextOne) {
  const std::vector<LaneShape> shapes = {{.length = 1000, .resident_from = 257},
                                         {.length = 1000, .resident_from = 256},
                                         {.length = 1000, .resident_from = 769}};
  const LanePlan plan = *SolveLanes(SplitObjective::kStep, PaperCosts(1), shapes);
  EXPECT_EQ(plan.cuts[0].host_end, 512);
  EXPECT_EQ(plan.cuts[1].host_end, 256);
  EXPECT_EQ(plan.cuts[2].host_end, 1000);  // nothing from the border at 1024 on
}

TEST(SplitSolver, EqualSequencesDifferByATileAtMost) {
  const LanePlan plan = *SolveLanes(SplitObjective::kPipelined, PaperCosts(0.9), EqualShapes(7, 1000));
  for (size_t i = 1; i < 7; ++i) {
    EXPECT_LE(plan.cuts[i].recomputed_end, plan.cuts[i - 1].recomputed_end);
    EXPECT_GE(plan.cuts[i].recomputed_end, plan.cuts[0].recomputed_end - 64);
  }
  EXPECT_LT(plan.cuts[6].recomputed_end, plan.cuts[0].recomputed_end);
}

TEST(SplitSolver, ABatchIsSplitAsItsSumIs) {
  // The same positions in sequences of unequal lengths: the same time to a tile.
  const LaneCosts costs = PaperCosts(0.8);
  std::vector<LaneShape> ragged;
  for (int64_t i = 1; i <= 31; ++i) ragged.push_back({.length = 128 * i, .x_stored = 128 * i});
  const double together = SolveLanes(SplitObjective::kStep, costs, ragged)->times.layer_s;
  const double one = SolveLanes(SplitObjective::kStep, costs, EqualShapes(1, 128 * 31 * 16))->times.layer_s;
  EXPECT_DOUBLE_EQ(together, one);
}

TEST(SplitSolver, AnEmptyStepHasNoRows) {
  const LanePlan plan = *SolveLanes(SplitObjective::kStep, PaperCosts(1), {});
  EXPECT_TRUE(plan.cuts.empty());
  EXPECT_EQ(plan.rows, LaneRows());
}

void ExpectRefusedSplit(const LaneCosts& costs, const LaneShape& shape, int64_t tile, const char* text) {
  const std::vector<LaneShape> shapes = {{.length = 64}, shape};
  for (const absl::Status& status : {SolveLanes(SplitObjective::kStep, costs, shapes, tile).status(),
                                     SmallestSplit(SplitObjective::kStep, costs, shapes, tile).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

TEST(SplitSolver, RefusesWhatCannotBeAndSaysWhatWouldWork) {
  const LaneCosts costs = PaperCosts(1);
  LaneCosts no_link = costs;
  no_link.link_bytes_per_s = 0;
  ExpectRefusedSplit(no_link, {.length = 64}, 64,
                     "link_bytes_per_s: 0 is not possible; what works is a number above 0");
  ExpectRefusedSplit(costs, {.length = 600, .x_stored = 256, .l_min = 512}, 64,
                     "sequence 1: l_min: 512 is beyond the 256 positions that X is stored for; what works is 0 to 256");
  ExpectRefusedSplit(costs, {.length = 0}, 64, "sequence 1: length: 0 is not at least 1");
  ExpectRefusedSplit(costs, {.length = 64, .x_stored = 65}, 64, "x_stored: 65 is not between 0 and the length, 64");
  ExpectRefusedSplit(costs, {.length = 64, .x_stored = 10, .x_resident = 11}, 64, "x_resident: 11");
  ExpectRefusedSplit(costs, {.length = 64, .resident_from = -1}, 64, "resident_from: -1");
  ExpectRefusedSplit(costs, {.length = 64, .piece_tokens = 96}, 64,
                     "piece_tokens: 96 is no multiple of the tile of 64");
  ExpectRefusedSplit(costs, {.length = 64}, 0, "tile: 0");
}

}  // namespace
}  // namespace runahead
