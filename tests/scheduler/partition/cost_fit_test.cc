#include "scheduler/partition/cost_fit.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CostModel Known() {
  CostModel model;
  model.layers = 24;
  model.kv_bytes_per_token = 40000;
  model.fixed_s = 0.01;
  model.linear_s_per_token = 3e-4;
  model.attention_s_per_token_pair = 2e-8;
  model.links[0].bytes_per_s = 1e9;
  return model;
}

// What is given to a fit: all but the constants.
CostModel Unknown() {
  CostModel model = Known();
  model.fixed_s = model.linear_s_per_token = model.attention_s_per_token_pair = 0;
  return model;
}

TimedRun Timed(const CostModel& model, Schedule schedule, std::vector<int64_t> parts, double factor = 1) {
  const double seconds = SimulateChain(model, schedule, parts)->ttft_s;
  return {schedule, std::move(parts), seconds * factor};
}

std::vector<TimedRun> SingleWorker(const CostModel& model) {
  std::vector<TimedRun> runs;
  for (int64_t tokens : {16, 256, 1024, 4096, 16384}) {
    runs.push_back(Timed(model, Schedule::kKvr, {tokens}));
  }
  return runs;
}

TEST(CostFit, FindsTheConstantsOfOneWorker) {
  const CostFit fit = FitCostModel(Unknown(), SingleWorker(Known()), {}).value();
  EXPECT_NEAR(fit.model.fixed_s / Known().fixed_s, 1, 1e-6);
  EXPECT_NEAR(fit.model.linear_s_per_token / Known().linear_s_per_token, 1, 1e-6);
  EXPECT_NEAR(fit.model.attention_s_per_token_pair / Known().attention_s_per_token_pair, 1, 1e-6);
  EXPECT_THAT(fit.doubts, IsEmpty());
  EXPECT_FALSE(fit.poor());
  EXPECT_LT(fit.worst_error, 1e-6);
  ASSERT_EQ(fit.residuals.size(), 5u);
  EXPECT_NEAR(fit.residuals[4].predicted_s, SingleWorker(Known())[4].seconds, 1e-6);
}

TEST(CostFit, FindsFloorAndLatencyInChainsAndBaselines) {
  CostModel known = Known();
  known.floor_s = 0.3;
  known.links[0].latency_s = 1e-4;
  std::vector<TimedRun> runs = SingleWorker(known);
  for (int64_t part : {100, 1000, 3000}) {
    runs.push_back(Timed(known, Schedule::kTsp, {part, part, part, part}));
    runs.push_back(Timed(known, Schedule::kKvr, {2 * part, part, part / 2}));
  }
  FitChoice all;
  all.floor = all.latency = true;
  const CostFit fit = FitCostModel(Unknown(), runs, all).value();
  EXPECT_NEAR(fit.model.floor_s / known.floor_s, 1, 1e-3);
  EXPECT_NEAR(fit.model.links[0].latency_s / known.links[0].latency_s, 1, 1e-2);
  EXPECT_NEAR(fit.model.linear_s_per_token / known.linear_s_per_token, 1, 1e-3);
  EXPECT_NEAR(fit.model.attention_s_per_token_pair / known.attention_s_per_token_pair, 1, 1e-3);
  EXPECT_THAT(fit.doubts, IsEmpty());
}

TEST(CostFit, SmallScatterIsNoDoubt) {
  std::vector<TimedRun> runs = SingleWorker(Known());
  for (size_t i = 0; i < runs.size(); ++i) runs[i].seconds *= i % 2 == 0 ? 1.02 : 0.98;
  const CostFit fit = FitCostModel(Unknown(), runs, {}).value();
  EXPECT_THAT(fit.doubts, IsEmpty());
  EXPECT_GT(fit.rms_error, 0.001);
  EXPECT_LT(fit.rms_error, 0.02);
  EXPECT_NEAR(fit.model.linear_s_per_token / Known().linear_s_per_token, 1, 0.15);
}

TEST(CostFit, KeepsConstantsAboveZero) {
  // Faster for each token the more there are: plain least squares would give negative attention.
  std::vector<TimedRun> runs;
  for (double tokens : {1000, 2000, 4000, 8000}) {
    runs.push_back({Schedule::kKvr, {static_cast<int64_t>(tokens)}, 1e-3 * tokens - 1e-8 * tokens * tokens});
  }
  const CostFit fit = FitCostModel(Unknown(), runs, {}).value();
  EXPECT_EQ(fit.model.attention_s_per_token_pair, 0);
  EXPECT_GE(fit.model.fixed_s, 0);
  EXPECT_GT(fit.model.linear_s_per_token, 8e-4);
}

TEST(CostFit, SaysWhenTheTimesDoNotFollowTheModel) {
  std::vector<TimedRun> runs = SingleWorker(Known());
  runs[2].seconds *= 2;
  const CostFit fit = FitCostModel(Unknown(), runs, {}).value();
  EXPECT_TRUE(fit.poor());
  EXPECT_GT(fit.rms_error, kPoorRmsError);
  EXPECT_THAT(fit.doubts[0], HasSubstr("in root mean square, more than 5%"));
  EXPECT_THAT(fit.doubts[1], HasSubstr("kvr of 1024 tokens on 1 workers: measured"));
}

TEST(CostFit, SaysWhatTheTimesDoNotDetermine) {
  const std::vector<TimedRun> two = {Timed(Known(), Schedule::kKvr, {100}), Timed(Known(), Schedule::kKvr, {1000})};
  EXPECT_THAT(FitCostModel(Unknown(), two, {})->doubts,
              ElementsAre(HasSubstr("2 timings for 3 constants"), HasSubstr("attention_s_per_token_pair")));
  FitChoice latency;
  latency.latency = true;
  EXPECT_THAT(FitCostModel(Unknown(), SingleWorker(Known()), latency)->doubts,
              ElementsAre(HasSubstr("link_latency_s: these timings do not determine it")));
  FitChoice floor;
  floor.floor = true;
  EXPECT_THAT(FitCostModel(Unknown(), SingleWorker(Known()), floor)->doubts,
              ElementsAre(HasSubstr("floor_s: these timings do not determine it")));
}

TEST(CostFit, LeavesAloneWhatIsNotChosen) {
  CostModel start = Unknown();
  start.fixed_s = 0.01;
  const CostFit fit = FitCostModel(start, SingleWorker(Known()), {.fixed = false}).value();
  EXPECT_EQ(fit.model.fixed_s, 0.01);
  EXPECT_NEAR(fit.model.linear_s_per_token / Known().linear_s_per_token, 1, 1e-6);
}

TEST(CostFit, RefusesBadInput) {
  const auto message = [](absl::Span<const TimedRun> runs, const FitChoice& choice) {
    return std::string(FitCostModel(Unknown(), runs, choice).status().message());
  };
  EXPECT_THAT(message({}, {}), HasSubstr("runs: none given"));
  EXPECT_THAT(message({{Schedule::kKvr, {10}, 0}}, {}), HasSubstr("runs[0]: 0 s is not above 0"));
  EXPECT_THAT(message({{Schedule::kKvr, {10}, 1}, {Schedule::kKvr, {10, 0}, 1}}, {}),
              HasSubstr("runs[1]: parts: 0 is not at least 1"));
  EXPECT_THAT(message({{Schedule::kKvr, {10}, 1}}, {false, false, false, false, false}),
              HasSubstr("no constant is chosen"));
}

}  // namespace
}  // namespace runahead
