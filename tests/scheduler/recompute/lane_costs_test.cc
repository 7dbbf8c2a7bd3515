#include "scheduler/recompute/lane_costs.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

LaneCosts RoundCosts() {
  LaneCosts costs;
  costs.link_bytes_per_s = 10;
  costs.kv_bytes = 4;
  costs.x_bytes = 2;
  costs.recompute_s = 0.5;
  costs.project_s = 3;
  costs.attend_s = 0.25;
  costs.signal_s = 1;
  costs.host_attend_s = 0.75;
  costs.other_link_bytes = 20;
  return costs;
}

constexpr LaneRows kRoundRows = {
    .recomputed = 10, .computed = 12, .x_streamed = 5, .streamed = 20, .host = 8, .resident = 30};

TEST(LaneCosts, TimesAreTheWrittenFormulas) {
  const double x = 5 * 2 / 10.0, kv = (20 * 4 + 20) / 10.0, r = 12 * 0.5;
  EXPECT_DOUBLE_EQ(TimesOfLanes(SplitObjective::kRow, RoundCosts(), kRoundRows).layer_s, std::max(r, kv));
  EXPECT_DOUBLE_EQ(TimesOfLanes(SplitObjective::kColumn, RoundCosts(), kRoundRows).layer_s, x + std::max(r, kv));
  EXPECT_DOUBLE_EQ(TimesOfLanes(SplitObjective::kPipelined, RoundCosts(), kRoundRows).layer_s, std::max(r, x + kv));
  const LaneTimes step = TimesOfLanes(SplitObjective::kStep, RoundCosts(), kRoundRows);
  EXPECT_DOUBLE_EQ(step.link_s, x + kv);
  EXPECT_DOUBLE_EQ(step.device_s, 3 + 60 * 0.25 + r);
  EXPECT_DOUBLE_EQ(step.host_s, 3 + 1 + 8 * 0.75);
  EXPECT_DOUBLE_EQ(step.layer_s, step.device_s);
}

TEST(LaneCosts, TheHostLaneSharesHostMemoryOnceQIsThere) {
  LaneCosts costs = RoundCosts();
  costs.host_bytes_per_s = 12;
  const LaneTimes step = TimesOfLanes(SplitObjective::kStep, costs, kRoundRows);
  // 110 bytes are copied, 40 of them in the 4 s before q is there; the host attends over 32.
  EXPECT_DOUBLE_EQ(step.shared_s, 4 + (110 - 40 + 32) / 12.0);
  costs.host_bytes_per_s = 5;  // less than the link
  EXPECT_DOUBLE_EQ(TimesOfLanes(SplitObjective::kStep, costs, kRoundRows).link_s, 110 / 5.0);
}

TEST(LaneCosts, AStepWithoutHostLaneHasNoSignals) {
  LaneRows rows = kRoundRows;
  rows.host = 0;
  const LaneTimes step = TimesOfLanes(SplitObjective::kStep, RoundCosts(), rows);
  EXPECT_EQ(step.host_s, 0);
  EXPECT_EQ(step.shared_s, 0);
}

TEST(LaneCosts, ObjectivesHaveNames) {
  EXPECT_THAT(SplitObjectiveNames(), ::testing::ElementsAre("row", "column", "pipelined", "step"));
  for (const std::string_view name : SplitObjectiveNames()) {
    EXPECT_EQ(SplitObjectiveName(*ParseSplitObjective(name)), name);
  }
  EXPECT_FALSE(ParseSplitObjective("rows"));
}

TEST(LaneCosts, RefusesWhatCannotBeAndNamesIt) {
  const auto refused = [](auto change, const char* text) {
    LaneCosts costs = RoundCosts();
    change(costs);
    const absl::Status status = CheckLaneCosts(costs);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  EXPECT_TRUE(CheckLaneCosts(RoundCosts()).ok());
  refused([](LaneCosts& c) { c.link_bytes_per_s = 0; }, "link_bytes_per_s: 0");
  refused([](LaneCosts& c) { c.link_bytes_per_s = INFINITY; }, "link_bytes_per_s: inf");
  refused([](LaneCosts& c) { c.kv_bytes = -1; }, "kv_bytes: -1");
  refused([](LaneCosts& c) { c.x_bytes = 0; }, "x_bytes: 0");
  refused([](LaneCosts& c) { c.recompute_s = NAN; }, "recompute_s: nan");
  refused([](LaneCosts& c) { c.project_s = -1; }, "project_s: -1");
  refused([](LaneCosts& c) { c.attend_s = INFINITY; }, "attend_s: inf");
  refused([](LaneCosts& c) { c.signal_s = -1; }, "signal_s: -1");
  refused([](LaneCosts& c) { c.other_link_bytes = -1; }, "other_link_bytes: -1");
  refused([](LaneCosts& c) { c.host_attend_s = NAN; }, "host_attend_s: nan");
  refused([](LaneCosts& c) { c.host_bytes_per_s = 0; }, "host_bytes_per_s: 0");
}

TEST(LaneCosts, TheLargestTimeBoundsALayer) {
  EXPECT_EQ(LaneBoundName(BoundOf({.link_s = 3, .device_s = 2})), "link");
  EXPECT_EQ(LaneBoundName(BoundOf({.link_s = 2, .device_s = 3, .host_s = 1})), "device");
  EXPECT_EQ(LaneBoundName(BoundOf({.link_s = 2, .device_s = 3, .host_s = 4})), "host");
  EXPECT_EQ(LaneBoundName(BoundOf({.link_s = 2, .host_s = 3, .shared_s = 4})), "host_memory");
  EXPECT_EQ(BoundOf({.link_s = 2, .device_s = 2}), LaneBound::kLink) << "of equal ones the first";
}

}  // namespace
}  // namespace runahead
