#include "client/profile/line_profile.h"

#include <cmath>
#include <random>

#include "client/plan/cost_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/chain_simulator.h"

namespace runahead {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// 30 layers that take a millisecond a token and 23 kB of KV: a small model on one thread.
CostModel Small() {
  CostModel model;
  model.layers = 30;
  model.kv_bytes_per_token = 23040;
  model.fixed_s = 0.02;
  model.linear_s_per_token = 1e-3;
  model.attention_s_per_token_pair = 2e-7;
  model.causal_skip = true;
  model.receive_ahead_layers = kRunaheadReceiveAhead;
  return model;
}

// Times as `truth` makes them; each off by up to `noise`, of which medians of a few runs would be that far off.
std::vector<TimedProbe> Timed(const CostModel& truth, const std::vector<int64_t>& lengths, int workers,
                              double noise = 0) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> draw(-noise, noise);
  CostModel alone = truth;
  alone.together_factor = 1;  // the others have a token each
  std::vector<TimedProbe> timed;
  for (Probe& probe : ProbesOf(lengths, workers)) {
    const CostModel& model = probe.kind == Probe::Kind::kChain ? truth : alone;
    const double seconds = SimulateChain(model, Schedule::kKvr, probe.parts)->ttft_s * (1 + draw(random));
    timed.push_back({std::move(probe), seconds, noise * seconds});
  }
  return timed;
}

const std::vector<int64_t> kLengths = {64, 128, 256, 512, 1024, 2048, 4096};

LineProfile ProfileOf(const std::vector<TimedProbe>& timed, int workers) {
  CostModel start;
  start.layers = 30;
  start.kv_bytes_per_token = 23040;
  auto profile = ProfileLine(start, timed, workers);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return *std::move(profile);
}

void ExpectConstants(const CostModel& found, const CostModel& truth, double tolerance) {
  EXPECT_NEAR(found.fixed_s / truth.fixed_s, 1, 5 * tolerance);
  EXPECT_NEAR(found.linear_s_per_token / truth.linear_s_per_token, 1, tolerance);
  EXPECT_NEAR(found.attention_s_per_token_pair / truth.attention_s_per_token_pair, 1, 3 * tolerance);
}

// The error of predictions over partitions that were not measured.
double PredictionError(const CostModel& found, const CostModel& truth, int workers) {
  double worst = 0;
  for (const int64_t tokens : {700, 3000, 7000}) {
    std::vector<int64_t> parts(workers, tokens / (workers + 1));
    parts[0] += tokens - parts[0] * workers;
    const double measured = SimulateChain(truth, Schedule::kKvr, parts)->ttft_s;
    const double predicted = SimulateChain(found, Schedule::kKvr, parts)->ttft_s;
    worst = std::max(worst, std::abs(predicted / measured - 1));
  }
  return worst;
}

TEST(LineProfile, OneWorkerGivesConstantsAndNothingOfLinks) {
  const LineProfile profile = ProfileOf(Timed(Small(), kLengths, 1), 1);
  ExpectConstants(profile.fit.model, Small(), 1e-3);
  EXPECT_FALSE(profile.fit.poor());
  EXPECT_THAT(profile.links, IsEmpty());
  EXPECT_THAT(profile.runs, SizeIs(kLengths.size()));
  EXPECT_TRUE(profile.fit.model.causal_skip);
  EXPECT_EQ(profile.fit.model.receive_ahead_layers, kRunaheadReceiveAhead);
  EXPECT_THAT(profile.fit.model.worker_factors, IsEmpty());
}

TEST(LineProfile, AFastLinkIsNotSeenAndHasABound) {
  CostModel truth = Small();
  truth.links[0] = {20e-6, 5e9};
  const LineProfile profile = ProfileOf(Timed(truth, kLengths, 2, 0.01), 2);
  ExpectConstants(profile.fit.model, truth, 0.03);
  ASSERT_THAT(profile.links, SizeIs(1));
  EXPECT_FALSE(profile.links[0].bandwidth_seen);
  EXPECT_FALSE(profile.links[0].latency_seen);
  EXPECT_GT(profile.links[0].least_bytes_per_s, 1e7);
  EXPECT_LT(profile.links[0].least_bytes_per_s, 5e9);
  EXPECT_GT(profile.links[0].most_latency_s, 20e-6);
  ASSERT_THAT(profile.fit.model.links, SizeIs(1));
  EXPECT_TRUE(std::isinf(profile.fit.model.links[0].bytes_per_s));
  EXPECT_EQ(profile.fit.model.links[0].latency_s, 0);
  EXPECT_THAT(profile.fit.model.worker_factors, IsEmpty()) << "1% is noise";
  EXPECT_LT(profile.chain_error, 0.02);
  EXPECT_LT(PredictionError(profile.fit.model, truth, 2), 0.03);
}

TEST(LineProfile, ASlowLinkIsFound) {
  for (const double noise : {0.0, 0.01}) {
    CostModel truth = Small();
    truth.links[0] = {0.01, 1e7};  // 2.3 ms of KV for each ms of computing, and 10 ms a frame
    const LineProfile profile = ProfileOf(Timed(truth, kLengths, 2, noise), 2);
    ExpectConstants(profile.fit.model, truth, 1e-3 + 3 * noise);
    EXPECT_TRUE(profile.links[0].bandwidth_seen);
    EXPECT_TRUE(profile.links[0].latency_seen);
    EXPECT_NEAR(profile.fit.model.links[0].bytes_per_s / 1e7, 1, 0.005 + 4 * noise);
    EXPECT_NEAR(profile.fit.model.links[0].latency_s / 0.01, 1, 0.005 + 10 * noise);
    EXPECT_NEAR(profile.fit.model.together_factor, 1, 0.005 + 3 * noise);
    EXPECT_LT(PredictionError(profile.fit.model, truth, 2), 0.01 + 3 * noise);
  }
}

TEST(LineProfile, UnequalWorkersAndLinksAreTold) {
  CostModel truth = Small();
  truth.worker_factors = {1, 1.02, 2.4, 0.5};
  truth.links = {{0, 1e10}, {0, 8e6}, {0, 1e10}};
  for (const double noise : {0.0, 0.02}) {
    const LineProfile profile = ProfileOf(Timed(truth, kLengths, 4, noise), 4);
    ExpectConstants(profile.fit.model, truth, 1e-3 + 3 * noise);
    EXPECT_THAT(profile.fit.model.worker_factors,
                ElementsAre(1, 1, DoubleNear(2.4, 0.02 + 3 * noise), DoubleNear(0.5, 0.01 + noise)));
    ASSERT_THAT(profile.fit.model.links, SizeIs(3));
    EXPECT_TRUE(profile.links[1].bandwidth_seen);
    EXPECT_FALSE(profile.links[0].bandwidth_seen || profile.links[2].bandwidth_seen);
    EXPECT_NEAR(profile.fit.model.links[1].bytes_per_s / 8e6, 1, 0.02 + 3 * noise);
    EXPECT_TRUE(std::isinf(profile.fit.model.links[2].bytes_per_s));
    EXPECT_LT(PredictionError(profile.fit.model, truth, 4), 0.03 + 2 * noise);
  }
}

// A slow card behind a slow link: its own time and the link's are told apart.
TEST(LineProfile, ASlowWorkerBehindASlowLinkIsNoSlowerThanItIs) {
  CostModel truth = Small();
  truth.worker_factors = {1, 3};
  truth.links[0] = {0.02, 1e7};
  const LineProfile profile = ProfileOf(Timed(truth, kLengths, 2), 2);
  EXPECT_THAT(profile.fit.model.worker_factors, ElementsAre(1, DoubleNear(3, 0.06)));
  EXPECT_NEAR(profile.fit.model.links[0].bytes_per_s / 1e7, 1, 0.02);
  EXPECT_LT(PredictionError(profile.fit.model, truth, 2), 0.02);
}

TEST(LineProfile, LinksThatAreAlikeStandAsOneForLinesOfAnyLength) {
  CostModel truth = Small();
  truth.links = {{0, 1.0e7}, {0, 1.03e7}, {0, 0.98e7}};
  const LineProfile profile = ProfileOf(Timed(truth, kLengths, 4), 4);
  ASSERT_THAT(profile.fit.model.links, SizeIs(1));
  EXPECT_NEAR(profile.fit.model.links[0].bytes_per_s, 1e7, 4e5);
  EXPECT_THAT(profile.links, SizeIs(3));
  EXPECT_TRUE(CheckCostModel(profile.fit.model, 16).ok());
}

// Something slowed the link's probes, not the link: chains of more tokens would have shown that.
TEST(LineProfile, ALinkThatChainsDoNotShowIsNotThere) {
  std::vector<TimedProbe> timed = Timed(Small(), kLengths, 3);
  for (TimedProbe& each : timed) {
    if (each.probe.kind == Probe::Kind::kLink) each.seconds *= 1.3;
  }
  const LineProfile profile = ProfileOf(timed, 3);
  for (const LinkFinding& link : profile.links) {
    EXPECT_FALSE(link.bandwidth_seen || link.latency_seen);
    EXPECT_GT(link.least_bytes_per_s, 0);
  }
  EXPECT_LT(PredictionError(profile.fit.model, Small(), 3), 0.01);
}

TEST(LineProfile, AFactorThatChainsDenyIsNotThere) {
  std::vector<TimedProbe> timed = Timed(Small(), kLengths, 2, 0.01);
  for (TimedProbe& each : timed) {
    if (each.probe.kind == Probe::Kind::kTail) each.seconds *= 1.4;
  }
  EXPECT_THAT(ProfileOf(timed, 2).fit.model.worker_factors, IsEmpty());
}

TEST(LineProfile, WhatWorkingTogetherCostsIsFound) {
  CostModel truth = Small();
  truth.together_factor = 1.3;
  const LineProfile profile = ProfileOf(Timed(truth, kLengths, 3, 0.01), 3);
  EXPECT_NEAR(profile.fit.model.together_factor, 1.3, 0.03);
  EXPECT_THAT(profile.fit.model.worker_factors, IsEmpty());
  ExpectConstants(profile.fit.model, truth, 0.03);
  EXPECT_FALSE(profile.fit.poor());
}

TEST(LineProfile, AFloorIsFoundWhereShortPromptsAreNotFaster) {
  CostModel truth = Small();
  truth.floor_s = 0.3;
  const LineProfile profile = ProfileOf(Timed(truth, kLengths, 2), 2);
  EXPECT_NEAR(profile.fit.model.floor_s, 0.3, 0.01);
  EXPECT_LT(PredictionError(profile.fit.model, truth, 2), 0.02);
}

TEST(LineProfile, SaysWhenPredictionsArePoor) {
  std::vector<TimedProbe> timed = Timed(Small(), kLengths, 2);
  int chains = 0;
  for (TimedProbe& each : timed) {
    if (each.probe.kind == Probe::Kind::kChain) each.seconds *= chains++ % 2 == 0 ? 1.5 : 0.6;
  }
  const LineProfile profile = ProfileOf(timed, 2);
  EXPECT_TRUE(profile.fit.poor());
  EXPECT_GT(profile.chain_error, kPoorChainError);
  // Nor do constants describe this.
  for (TimedProbe& each : timed) each.seconds = each.probe.tokens % 1024 == 0 ? 1 : 2;
  EXPECT_TRUE(ProfileOf(timed, 2).fit.poor());
}

}  // namespace
}  // namespace runahead
