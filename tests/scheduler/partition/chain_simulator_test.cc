#include "scheduler/partition/chain_simulator.h"

#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/scheduler/partition/chain_formulas.h"

namespace runahead {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Parts = std::vector<int64_t>;

SimulatedRun Simulate(const CostModel& model, Schedule schedule, const Parts& parts) {
  return SimulateChain(model, schedule, parts).value();
}

SimulatedRun Kvr(const CostModel& model, const Parts& parts) {
  return Simulate(model, Schedule::kKvr, parts);
}

// One layer; a token costs 1 s of which a quarter is QKV; KV of a token is a byte.
CostModel OneLayer() {
  CostModel model;
  model.linear_s_per_token = 1;
  model.kv_bytes_per_token = 1;
  return model;
}

// KV-Runahead (arXiv 2405.05329), the 9-token example on 3 processes: 27 dot products each and 36 exchanged rows for
// TSP, {16, 21, 18} and 22 for parts (4, 3, 2). Rows of K and of V are counted there, pairs here.
TEST(ChainSimulator, NineTokenExample) {
  const SimulatedRun tsp = Simulate(OneLayer(), Schedule::kTsp, {3, 3, 3});
  EXPECT_THAT(tsp.dot_products, ElementsAre(27, 27, 27));
  EXPECT_EQ(2 * tsp.traffic_entries, 36);
  const SimulatedRun kvr = Kvr(OneLayer(), {4, 3, 2});
  EXPECT_THAT(kvr.dot_products, ElementsAre(16, 21, 18));
  EXPECT_EQ(2 * kvr.traffic_entries, 22);
  EXPECT_EQ(kvr.traffic_bytes, 11);
}

// The paper's 11-word example on 4 processes: TSP parts 3, 3, 3, 2 and KVR parts 5, 3, 2, 1.
TEST(ChainSimulator, ElevenWordExample) {
  EXPECT_THAT(Simulate(OneLayer(), Schedule::kTsp, {3, 3, 3, 2}).dot_products, ElementsAre(33, 33, 33, 22));
  EXPECT_THAT(Kvr(OneLayer(), {5, 3, 2, 1}).dot_products, ElementsAre(25, 24, 20, 11));
}

// What causality needs is the same for every schedule and partition.
TEST(ChainSimulator, CausalAttentionComputesTheTriangleWhateverTheParts) {
  CostModel skipping = OneLayer();
  skipping.causal_skip = true;
  const auto sum = [](const Parts& parts) { return std::accumulate(parts.begin(), parts.end(), int64_t{0}); };
  EXPECT_EQ(sum(Simulate(OneLayer(), Schedule::kTspCausal, {3, 3, 3}).dot_products), 45);
  EXPECT_EQ(sum(Kvr(skipping, {4, 3, 2}).dot_products), 45);
  EXPECT_EQ(sum(Simulate(skipping, Schedule::kTsp, {3, 3, 3}).dot_products), 81);  // dense is dense
}

// The paper's traffic formulas, in entries of one layer.
TEST(ChainSimulator, TrafficIsWhatTheFormulasSay) {
  for (int64_t width : {1, 2, 5, 8}) {
    const Parts even(width, 100);
    EXPECT_EQ(Simulate(OneLayer(), Schedule::kTsp, even).traffic_entries, TspTrafficEntries(100 * width, width));
    EXPECT_EQ(Kvr(OneLayer(), even).traffic_entries, KvrEvenTrafficEntries(100 * width, width));
  }
  EXPECT_EQ(Kvr(OneLayer(), {7, 1, 2}).traffic_entries, KvrTrafficEntries({7, 1, 2}));
}

// The paper's lower bound holds for every partition where attention is all, and is near with balanced parts.
TEST(ChainSimulator, NothingIsFasterThanTheLowerBound) {
  CostModel model;
  model.layers = 1000;
  model.attention_s_per_token_pair = 1e-6;
  const double single = Kvr(model, {1200}).ttft_s;
  for (const Parts& parts : {Parts{300, 300, 300, 300}, Parts{600, 300, 200, 100}, Parts{477, 300, 231, 192}}) {
    EXPECT_GE(Kvr(model, parts).ttft_s, TtftLowerBound(single, 4));
  }
  EXPECT_LT(Kvr(model, {477, 300, 231, 192}).ttft_s, 1.05 * TtftLowerBound(single, 4));
}

TEST(ChainSimulator, OneWorkerIsAPlainPass) {
  CostModel model = OneLayer();
  model.layers = 8;
  model.fixed_s = 2;
  model.attention_s_per_token_pair = 0.5;
  model.logits_s = 0.25;
  const SimulatedRun run = Kvr(model, {10});
  EXPECT_DOUBLE_EQ(run.ttft_s, 2 + 10 + 50 + 0.25);
  EXPECT_THAT(run.busy_s, ElementsAre(DoubleEq(62.25)));
  EXPECT_THAT(run.waiting_s, ElementsAre(0));
  EXPECT_EQ(run.traffic_entries, 0);
}

// Worker 0 has K and V after 2 s, its frame of 8 bytes takes 1 + 4 s: worker 1 (2 tokens: QKV until 0.5 s) waits 6.5 s.
TEST(ChainSimulator, AWorkerAttendsWhenItsOwnAndTheReceivedKvAreThere) {
  CostModel model = OneLayer();
  model.links = {{1, 2, {}}};
  const SimulatedRun run = Kvr(model, {8, 2});
  EXPECT_DOUBLE_EQ(run.waiting_s[1], 6.5);
  EXPECT_DOUBLE_EQ(run.waiting_s[0], 0);
  EXPECT_DOUBLE_EQ(run.ttft_s, 7 + 1.5);
  EXPECT_DOUBLE_EQ(run.busy_s[0], 8);
}

// Three workers of 4, 4 and 2 tokens, 1 byte/s, QKV until 1, 1 and 0.5 s. The first frame is at worker 1 after 5 s.
// Worker 1 sends its own at 1 (until 5), then forwards (until 9): cut-through, not one message after its own receive
// is done with 8 bytes (until 13).
TEST(ChainSimulator, ForwardsEachFrameAsSoonAsItIsWholeOverALinkThatCarriesOneAtATime) {
  CostModel model = OneLayer();
  model.links = {{0, 1, {}}};
  const SimulatedRun run = Kvr(model, {4, 4, 2});
  EXPECT_DOUBLE_EQ(run.waiting_s[1], 4);
  EXPECT_DOUBLE_EQ(run.waiting_s[2], 8.5);
}

// No barrier between layers: worker 0 runs ahead of worker 1, and sending overlaps its attention.
TEST(ChainSimulator, TheHeadNeverWaits) {
  CostModel model = OneLayer();
  model.layers = 10;
  model.links = {{0, 0.01, {}}};
  const SimulatedRun run = Kvr(model, {5, 5});
  EXPECT_EQ(run.waiting_s[0], 0);
  EXPECT_DOUBLE_EQ(run.busy_s[0], 5);
  EXPECT_GT(run.ttft_s, 500);
}

// Two layers, 4 and 4 tokens, 2 s a layer each, QKV in 0.5. KV of a layer takes 2 bytes at 1 byte/s = 2 s. Layer 0:
// there at 2.5, worker 1 done at 4. Layer 1: worker 0 has it at 2.5. Taken from 4 on (one ahead): there at 6, done at
// 7.5. Two ahead: from 2.5 on, there at 4.5, done at 6.
TEST(ChainSimulator, ReceivesSoManyLayersAhead) {
  CostModel model = OneLayer();
  model.layers = 2;
  model.linear_s_per_token = 1;
  model.kv_bytes_per_token = 1;
  model.links = {{0, 1, {}}};
  EXPECT_DOUBLE_EQ(Kvr(model, {4, 4}).ttft_s, 7.5);
  model.receive_ahead_layers = kRunaheadReceiveAhead;
  EXPECT_DOUBLE_EQ(Kvr(model, {4, 4}).ttft_s, 6);
}

// Three workers of 4, 4 and 2 tokens whose K and V are there after 1, 1 and 0.5 s; links of 1 byte/s on a bus of 1 in
// all. From 1 to 9 both first frames of 4 bytes go at half the rate. Worker 1 forwards its neighbour's from 9 to 13,
// alone. Without the bus these are 5 and 9 (ForwardsEachFrame..).
TEST(ChainSimulator, TransfersOfLinksOnABusShareItsBandwidth) {
  CostModel model = OneLayer();
  model.links = {{0, 1, {}}, {0, 1, {}}};
  model.buses = {{{0, 1}, 1}};
  const SimulatedRun run = Kvr(model, {4, 4, 2});
  EXPECT_DOUBLE_EQ(run.waiting_s[1], 9 - 1);
  EXPECT_DOUBLE_EQ(run.waiting_s[2], 13 - 0.5);
  EXPECT_EQ(run.traffic_entries, 4 + 8);
  // A bus of the second link alone, and a chain that ends before it.
  model.buses = {{{1}, 1}};
  EXPECT_DOUBLE_EQ(Kvr(model, {4, 4, 2}).waiting_s[1], 4);
  EXPECT_DOUBLE_EQ(Kvr(model, {4, 4, 2}).waiting_s[2], 8.5);
  EXPECT_DOUBLE_EQ(Kvr(model, {4, 4}).waiting_s[1], 4);
}

// Two links that could carry 3 and 1 byte/s on a bus of 3: the slow one takes its 1, and the other what is left.
TEST(ChainSimulator, ASlowLinkLeavesTheBusToOthers) {
  CostModel model = OneLayer();
  model.linear_s_per_token = 0;
  model.links = {{0, 3, {}}, {0, 1, {}}};
  model.buses = {{{}, 3}};
  // 8 bytes at 2 byte/s: 4 s. By then the second link has carried its own 4 and carries 8 more alone, until 12.
  const SimulatedRun run = Kvr(model, {8, 4, 1});
  EXPECT_DOUBLE_EQ(run.waiting_s[1], 4);
  EXPECT_DOUBLE_EQ(run.waiting_s[2], 12);
}

// Up and down the line are two directions of a bus, as of a link.
TEST(ChainSimulator, DirectionsOfABusDoNotShare) {
  CostModel model = OneLayer();
  model.linear_s_per_token = 0;
  model.links = {{0, 1, {}}};
  model.buses = {{{}, 1}};
  // Two workers: one frame in each direction. Three: two links at half the rate down and up, then one link each.
  EXPECT_THAT(Simulate(model, Schedule::kTsp, {2, 2}).waiting_s, ElementsAre(2, 2));
  EXPECT_THAT(Simulate(model, Schedule::kTsp, {2, 2, 2}).waiting_s, ElementsAre(6, 4, 6));
}

// One worker after the other in time order: a bus on which transfers never meet, and one that is no limit, change
// nothing, whatever the model. This holds the two ways of simulating against each other.
TEST(ChainSimulator, ABusWithoutALimitChangesNothing) {
  std::mt19937_64 random(7);
  const auto uniform = [&random](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int trial = 0; trial < 300; ++trial) {
    const int width = 1 + static_cast<int>(random() % 6);
    Parts parts;
    for (int i = 0; i < width; ++i) parts.push_back(1 + static_cast<int64_t>(random() % 400));
    CostModel model;
    model.layers = 1 + static_cast<int64_t>(random() % 7);
    model.kv_bytes_per_token = trial % 9 == 0 ? 0 : uniform(0.1, 3);
    model.fixed_s = uniform(0, 20);
    model.linear_s_per_token = uniform(0, 1);
    model.attention_s_per_token_pair = uniform(0, 1e-2);
    model.causal_skip = random() % 2 == 0;
    model.receive_ahead_layers = 1 + static_cast<int64_t>(random() % 3);
    if (random() % 2 == 0) {
      model.window_layers = 1 + static_cast<int64_t>(random()) % model.layers;
      if (model.window_layers < 1) model.window_layers = 1;
      model.window = 1 + static_cast<int64_t>(random() % 500);
    }
    model.links.clear();
    for (int i = 0; i + 1 < std::max(width, 2); ++i) {
      model.links.push_back({uniform(0, 1), uniform(0.2, 5), {0.3, 3, random()}});
      model.worker_factors.push_back(uniform(0.5, 2));
    }
    model.worker_factors.push_back(1);
    for (const Schedule schedule : {Schedule::kKvr, Schedule::kTsp, Schedule::kTspCausal}) {
      SCOPED_TRACE(absl::StrCat("trial ", trial, ", ", std::string(ScheduleName(schedule))));
      model.buses.clear();
      const SimulatedRun alone = Simulate(model, schedule, parts);
      model.buses = {{{}, std::numeric_limits<double>::infinity()}};
      const SimulatedRun unlimited = Simulate(model, schedule, parts);
      EXPECT_NEAR(unlimited.ttft_s, alone.ttft_s, 1e-9 * alone.ttft_s);
      for (int i = 0; i < width; ++i) EXPECT_NEAR(unlimited.waiting_s[i], alone.waiting_s[i], 1e-9 * alone.ttft_s);
      model.buses = {{{}, 100}};
      EXPECT_NEAR(Simulate(model, schedule, parts).ttft_s, alone.ttft_s, 1e-9 * alone.ttft_s);
      model.buses = {{{}, 0.5}};
      EXPECT_GE(Simulate(model, schedule, parts).ttft_s, alone.ttft_s * (1 - 1e-9));
    }
  }
}

TEST(ChainSimulator, TspWaitsForAllInEveryLayer) {
  CostModel model = OneLayer();
  model.layers = 2;
  model.worker_factors = {1, 1, 2};
  // QKV 1 or 2 s a layer of 4 (8) tokens; then 3 or 6.
  const SimulatedRun run = Simulate(model, Schedule::kTsp, {8, 8, 8});
  EXPECT_DOUBLE_EQ(run.ttft_s, 2 + 6 + 2 + 6);
  EXPECT_DOUBLE_EQ(run.waiting_s[0], 1 + 4);
  EXPECT_DOUBLE_EQ(run.waiting_s[2], 0);
}

// Both directions at once: 3 workers of 2 tokens at 1 byte/s. Ends get the middle's part after 2 s and the other end's
// after 4; the middle gets both after 2.
TEST(ChainSimulator, TspGathersAlongTheLineInBothDirections) {
  CostModel model = OneLayer();
  model.linear_s_per_token = 0;
  model.links = {{0, 1, {}}};
  EXPECT_THAT(Simulate(model, Schedule::kTsp, {2, 2, 2}).waiting_s, ElementsAre(4, 2, 4));
}

TEST(ChainSimulator, WorkersAndLinksMayDiffer) {
  CostModel model = OneLayer();
  model.worker_factors = {1, 2};
  EXPECT_DOUBLE_EQ(Kvr(model, {4, 4}).ttft_s, 8);
  model.links = {{0, 100, {}}, {0, 1, {}}};
  model.worker_factors = {1, 1, 1};
  const SimulatedRun run = Kvr(model, {4, 4, 4});
  EXPECT_LT(run.waiting_s[1], 0.1);
  EXPECT_GT(run.waiting_s[2], 7);
}

TEST(ChainSimulator, WorkersOfAChainAreSlowerTogetherAndOneAloneIsNot) {
  CostModel model;
  model.layers = 2;
  model.linear_s_per_token = 1;
  model.attention_s_per_token_pair = 0.5;
  const auto ttft = [&model](const std::vector<int64_t>& parts) {
    return SimulateChain(model, Schedule::kKvr, parts)->ttft_s;
  };
  const double alone = ttft({8}), chain = ttft({5, 3});
  model.together_factor = 1.25;
  EXPECT_DOUBLE_EQ(ttft({8}), alone);
  EXPECT_DOUBLE_EQ(ttft({5, 3}), 1.25 * chain);
}

TEST(ChainSimulator, SlowdownsDependOnTheSeedAlone) {
  CostModel model = OneLayer();
  model.layers = 16;
  model.links = {{0, 1, {0.5, 4, 1}}};
  const double first = Kvr(model, {8, 8}).ttft_s;
  EXPECT_EQ(Kvr(model, {8, 8}).ttft_s, first);
  model.links[0].slowdown.seed = 2;
  EXPECT_NE(Kvr(model, {8, 8}).ttft_s, first);
  model.links[0].slowdown.probability = 0;
  EXPECT_LT(Kvr(model, {8, 8}).ttft_s, first);
}

// 4,000 transfers one after the other: every second one takes 1 to 3 times as long, so all take 1.5 times as long.
TEST(ChainSimulator, SlowdownsAreAsLikelyAndAsLargeAsAskedFor) {
  CostModel model;
  model.layers = 4000;
  model.kv_bytes_per_token = 4000;
  model.links = {{0, 1, {0.5, 3, 7}}};
  EXPECT_NEAR(Kvr(model, {1, 1}).ttft_s, 1.5 * 4000, 100);
}

TEST(ChainSimulator, RefusesBadInput) {
  const auto message = [](const CostModel& model, const Parts& parts) {
    return std::string(SimulateChain(model, Schedule::kKvr, parts).status().message());
  };
  EXPECT_THAT(message(OneLayer(), {}), HasSubstr("width: 0"));
  EXPECT_THAT(message(OneLayer(), {3, 0}), HasSubstr("parts: 0 is not at least 1"));
  CostModel bad = OneLayer();
  bad.layers = -1;
  EXPECT_THAT(message(bad, {3}), HasSubstr("layers: -1"));
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(message(OneLayer(), {huge, huge}), HasSubstr("more than 1073741824 tokens together"));
  EXPECT_TRUE(SimulateChain(OneLayer(), Schedule::kTsp, {1 << 29, 1 << 29}).ok());
}

TEST(ChainSimulator, SchedulesThatDifferInTheirPartsOnlyAreOne) {
  const Parts parts = {5, 3};
  for (const Schedule schedule : {Schedule::kKvrEven, Schedule::kSingle}) {
    EXPECT_EQ(Simulate(OneLayer(), schedule, parts).ttft_s, Simulate(OneLayer(), Schedule::kKvr, parts).ttft_s);
  }
}

// 9 tokens on 3 workers, of which a query sees the last 4: what goes over the first link is 3 of the head's 4 tokens,
// over the second the middle's 3. (The all-gather carries all, and computes what the window leaves.)
TEST(ChainSimulator, AWindowLayerSendsAndComputesWhatIsSeen) {
  CostModel model = OneLayer();
  model.window_layers = 1;
  model.window = 4;
  const SimulatedRun kvr = Kvr(model, {4, 3, 2});
  EXPECT_THAT(kvr.dot_products, ElementsAre(1 + 2 + 3 + 4, 4 + 4 + 4, 4 + 4));
  EXPECT_EQ(kvr.traffic_entries, 3 + 3);
  EXPECT_EQ(kvr.traffic_bytes, 6);
  const SimulatedRun tsp = Simulate(model, Schedule::kTsp, {3, 3, 3});
  EXPECT_THAT(tsp.dot_products, ElementsAre(1 + 2 + 3, 4 + 4 + 4, 4 + 4 + 4));
  EXPECT_EQ(tsp.traffic_entries, TspTrafficEntries(9, 3));
}

// Token by token: whoever receives over a link, or somebody behind it, sees it. Windows over part of a part, over
// several, of one token, and longer than the prompt.
TEST(ChainSimulator, TrafficOfAWindowIsCountedTokenByToken) {
  const Parts parts = {7, 1, 5, 2, 6};
  for (const int64_t window : {1, 2, 3, 6, 8, 9, 14, 21, 100}) {
    CostModel model = OneLayer();
    model.window_layers = 1;
    model.window = window;
    int64_t entries = 0, end = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      end += parts[i];
      for (int64_t token = 0; token < end; ++token) entries += token > end - window;
    }
    EXPECT_EQ(Kvr(model, parts).traffic_entries, entries) << window;
  }
}

// A frame nobody needs does not exist: with a window of one token nobody waits, whatever the link.
TEST(ChainSimulator, WhoSeesNothingOfOthersDoesNotWait) {
  CostModel model = OneLayer();
  model.links = {{1, 1, {}}};
  model.window_layers = model.window = 1;
  const SimulatedRun run = Kvr(model, {8, 2});
  EXPECT_DOUBLE_EQ(run.waiting_s[1], 0);
  EXPECT_DOUBLE_EQ(run.ttft_s, 2);
  EXPECT_EQ(run.traffic_bytes, 0);
  // Of three tokens two come, at 2 s + 1 s + 2 s; the own QKV is there at 0.5 s.
  model.window = 3;
  EXPECT_DOUBLE_EQ(Kvr(model, {8, 2}).waiting_s[1], 4.5);
  // Of the first part's frame the third worker sees nothing: one frame comes there, at 1 s (own) + 1 + 2.
  EXPECT_DOUBLE_EQ(Kvr(model, {4, 4, 2}).waiting_s[2], 3.5);
}

TEST(ChainSimulator, MixedLayersAreTheMeanOfBothKinds) {
  CostModel model = OneLayer();
  model.layers = 4;
  model.attention_s_per_token_pair = 0.5;
  model.kv_bytes_per_token = 4;
  model.causal_skip = true;
  model.links[0].bytes_per_s = 3;
  CostModel local = model, half = model;
  local.window_layers = 4, half.window_layers = 2;
  local.window = half.window = 5;
  const Parts parts = {20, 12, 8};
  const SimulatedRun all = Kvr(model, parts), none = Kvr(local, parts), mixed = Kvr(half, parts);
  EXPECT_EQ(mixed.traffic_entries, (all.traffic_entries + none.traffic_entries) / 2);
  EXPECT_DOUBLE_EQ(mixed.traffic_bytes, (all.traffic_bytes + none.traffic_bytes) / 2);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(mixed.dot_products[i], (all.dot_products[i] + none.dot_products[i]) / 2);
    EXPECT_DOUBLE_EQ(mixed.busy_s[i], (all.busy_s[i] + none.busy_s[i]) / 2);
  }
  EXPECT_LT(mixed.ttft_s, all.ttft_s);
  EXPECT_GT(mixed.ttft_s, none.ttft_s);
}

}  // namespace
}  // namespace runahead
