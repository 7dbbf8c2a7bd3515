// A chain behind a known beginning, as chain_simulator.h simulates it.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/chain_simulator.h"
#include "tests/scheduler/partition/chain_formulas.h"

namespace runahead {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Parts = std::vector<int64_t>;

constexpr double kAtOnce = std::numeric_limits<double>::infinity();

SimulatedRun Behind(const CostModel& model, const KnownBeginning& known, const Parts& parts) {
  return SimulateChain(model, Schedule::kKvr, parts, known).value();
}

// One layer; a token costs 1 s of which a quarter is QKV; KV of a token is a byte.
CostModel OneLayerOfOneByte() {
  CostModel model;
  model.linear_s_per_token = 1;
  model.kv_bytes_per_token = 1;
  return model;
}

// The head has its own K and V after 1 s and the 4 known rows after 2. Over the link of 1 byte/s go its own from 1 to
// 5, then the known ones to 9: the tail waits from 0.5 to 9.
TEST(ChainBehindKnown, TheHeadWaitsForWhatIsKnownAndPassesItOn) {
  CostModel model = OneLayerOfOneByte();
  model.links = {{0, 1, {}}};
  const SimulatedRun run = Behind(model, {4, 2}, {4, 2});
  EXPECT_THAT(run.waiting_s, ElementsAre(DoubleEq(1), DoubleEq(8.5)));
  EXPECT_DOUBLE_EQ(run.ttft_s, 9 + 1.5);
  EXPECT_EQ(run.traffic_entries, 8);
  EXPECT_EQ(run.traffic_bytes, 8);
  EXPECT_EQ(run.known_bytes, 4);
}

TEST(ChainBehindKnown, QueriesMeetWhatIsKnown) {
  CostModel model = OneLayerOfOneByte();
  EXPECT_THAT(Behind(model, {3, kAtOnce}, {2, 4}).dot_products, ElementsAre(2 * 5, 4 * 9));
  model.causal_skip = true;
  EXPECT_THAT(Behind(model, {3, kAtOnce}, {2, 4}).dot_products, ElementsAre(4 + 5, 6 + 7 + 8 + 9));
}

// The paper's Net_kvr, (p - 1) / 2 * C, and what is known over every link.
TEST(ChainBehindKnown, TrafficIsTheFormulasAndWhatIsKnownOverEveryLink) {
  for (const int64_t width : {1, 2, 5, 8}) {
    const SimulatedRun run = Behind(OneLayerOfOneByte(), {700, kAtOnce}, Parts(width, 100));
    EXPECT_EQ(run.traffic_entries, KvrEvenTrafficEntries(100 * width, width) + static_cast<double>(700 * (width - 1)));
  }
}

// Ten layers of 0.1 s until K and V are there and 0.3 s more. Known rows of a layer take 0.25 s, and are asked for two
// layers ahead: only the first layer's are waited for.
TEST(ChainBehindKnown, WhatIsKnownComesWhileTheLayersBeforeAreComputed) {
  CostModel model = OneLayerOfOneByte();
  model.layers = 10;
  model.kv_bytes_per_token = 10;
  model.receive_ahead_layers = kRunaheadReceiveAhead;
  const SimulatedRun run = Behind(model, {20, 80}, {4});
  EXPECT_NEAR(run.waiting_s[0], 0.15, 1e-12);
  EXPECT_NEAR(run.ttft_s, 4 + 0.15, 1e-12);
  EXPECT_EQ(run.traffic_bytes, 0) << "no link of the chain";
  EXPECT_EQ(run.known_bytes, 200);
  // 0.5 s a layer: the head computes no faster than they come.
  EXPECT_NEAR(Behind(model, {20, 40}, {4}).ttft_s, 10 * 0.5 + 0.3, 1e-12);
}

// Of 10 known tokens the head's first query sees 3.
TEST(ChainBehindKnown, OfALayerWithAWindowComesWhatIsSeen) {
  CostModel model = OneLayerOfOneByte();
  model.window_layers = 1;
  model.window = 4;
  const SimulatedRun run = Behind(model, {10, kAtOnce}, {2, 1});
  EXPECT_EQ(run.known_bytes, 3);
  EXPECT_EQ(run.traffic_entries, 3);
  EXPECT_THAT(run.dot_products, ElementsAre(8, 4));
  model.window = 1;
  EXPECT_EQ(Behind(model, {10, 1}, {2, 1}).waiting_s[0], 0) << "nothing comes";
}

struct Case {
  CostModel model;
  KnownBeginning known;
  Parts parts;
};

Case RandomCase(std::mt19937_64& random) {
  const auto uniform = [&random](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  Case all;
  const int width = 1 + static_cast<int>(random() % 5);
  for (int i = 0; i < width; ++i) all.parts.push_back(1 + static_cast<int64_t>(random() % 400));
  CostModel& model = all.model;
  model.layers = 1 + static_cast<int64_t>(random() % 7);
  model.kv_bytes_per_token = uniform(0.1, 3);
  model.fixed_s = uniform(0, 20);
  model.linear_s_per_token = uniform(0, 1);
  model.attention_s_per_token_pair = uniform(0, 1e-2);
  model.causal_skip = random() % 2 == 0;
  model.receive_ahead_layers = 1 + static_cast<int64_t>(random() % 3);
  if (random() % 2 == 0) {
    model.window_layers = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(model.layers));
    model.window = 1 + static_cast<int64_t>(random() % 500);
  }
  model.links.clear();
  for (int i = 0; i + 1 < std::max(width, 2); ++i) model.links.push_back({uniform(0, 1), uniform(0.2, 5), {}});
  for (int i = 0; i < width; ++i) model.worker_factors.push_back(uniform(0.5, 2));
  all.known = {1 + static_cast<int64_t>(random() % 600), uniform(0.2, 5)};
  return all;
}

// Whoever has the known tokens is as a worker before the head that computes them in no time.
TEST(ChainBehindKnown, IsAsBehindAWorkerThatHasThemAtOnce) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(absl::StrCat("trial ", trial));
    Case behind = RandomCase(random);
    Case whole = behind;
    whole.model.worker_factors.insert(whole.model.worker_factors.begin(), 1e-15);
    whole.model.links.insert(whole.model.links.begin(), {0, behind.known.bytes_per_s, {}});
    whole.parts.insert(whole.parts.begin(), behind.known.tokens);
    for (const bool buses : {false, true}) {
      // No limit: the simulation with buses, of the same times.
      if (buses) behind.model.buses = whole.model.buses = {{{}, kAtOnce}};
      const SimulatedRun run = Behind(behind.model, behind.known, behind.parts);
      const SimulatedRun longer = Behind(whole.model, {}, whole.parts);
      EXPECT_NEAR(run.ttft_s, longer.ttft_s, 1e-9 * longer.ttft_s);
      for (size_t i = 0; i < run.waiting_s.size(); ++i) {
        EXPECT_NEAR(run.waiting_s[i], longer.waiting_s[i + 1], 1e-9 * longer.ttft_s);
        EXPECT_EQ(run.dot_products[i], longer.dot_products[i + 1]);
        EXPECT_NEAR(run.busy_s[i], longer.busy_s[i + 1], 1e-9 * longer.ttft_s);
      }
      EXPECT_NEAR(run.traffic_bytes + run.known_bytes, longer.traffic_bytes, 1e-9 * longer.traffic_bytes);
    }
  }
}

TEST(ChainBehindKnown, WithNothingKnownIsTheChainFromTheFirstTokenToTheLastBit) {
  std::mt19937_64 random(12);
  for (int trial = 0; trial < 100; ++trial) {
    Case any = RandomCase(random);
    if (trial % 2 == 0) any.model.buses = {{{}, 2}};
    const SimulatedRun none = Behind(any.model, {0, any.known.bytes_per_s}, any.parts);
    const SimulatedRun plain = SimulateChain(any.model, Schedule::kKvr, any.parts).value();
    EXPECT_EQ(none.ttft_s, plain.ttft_s);
    EXPECT_THAT(none.busy_s, ElementsAreArray(plain.busy_s));
    EXPECT_THAT(none.waiting_s, ElementsAreArray(plain.waiting_s));
    EXPECT_EQ(none.traffic_bytes, plain.traffic_bytes);
    EXPECT_EQ(none.known_bytes, 0);
  }
}

TEST(ChainBehindKnown, RefusesWhatCannotBeKnown) {
  const auto message = [](Schedule schedule, const KnownBeginning& known) {
    const auto run = SimulateChain(OneLayerOfOneByte(), schedule, {3}, known);
    EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(run.status().message());
  };
  EXPECT_THAT(message(Schedule::kKvr, {-1}), HasSubstr("known.tokens: -1"));
  EXPECT_THAT(message(Schedule::kKvr, {(1 << 30) + 1}), HasSubstr("known.tokens: 1073741825"));
  EXPECT_THAT(message(Schedule::kKvr, {1 << 30}), HasSubstr("more than 1073741824 tokens together"));
  EXPECT_THAT(message(Schedule::kKvr, {1, 0}), HasSubstr("known.bytes_per_s: 0"));
  EXPECT_THAT(message(Schedule::kKvr, {1, std::numeric_limits<double>::quiet_NaN()}), HasSubstr("known.bytes_per_s"));
  EXPECT_THAT(message(Schedule::kTspCausal, {1}), HasSubstr("schedule tsp-causal computes a prompt from its first"));
}

}  // namespace
}  // namespace runahead
