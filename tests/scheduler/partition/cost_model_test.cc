#include "scheduler/partition/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

CostModel Model() {
  CostModel model;
  model.layers = 4;
  model.fixed_s = 0.4;
  model.linear_s_per_token = 0.04;
  model.attention_s_per_token_pair = 0.004;
  return model;
}

TEST(CostModel, ALayerTakesItsShareOfAllConstants) {
  const LayerTimes times = TimesOfLayer(Model(), 0, 10, 50);
  EXPECT_DOUBLE_EQ(times.qkv_s, 0.25 * (0.1 + 0.1));
  EXPECT_DOUBLE_EQ(times.rest_s, 0.75 * (0.1 + 0.1) + 0.05);
}

TEST(CostModel, AFloorStretchesBothStepsAlike) {
  CostModel model = Model();
  model.floor_s = 4;
  const LayerTimes times = TimesOfLayer(model, 0, 10, 50);
  EXPECT_DOUBLE_EQ(times.qkv_s + times.rest_s, 1);
  EXPECT_DOUBLE_EQ(times.qkv_s, 0.05 / 0.25);
  model.floor_s = 0.9;  // below what there is to do
  EXPECT_DOUBLE_EQ(TimesOfLayer(model, 0, 10, 50).rest_s, TimesOfLayer(Model(), 0, 10, 50).rest_s);
}

TEST(CostModel, AWorkersFactorFallsOnAllItsTimes) {
  CostModel model = Model();
  model.floor_s = 4;
  model.worker_factors = {1, 3};
  EXPECT_DOUBLE_EQ(TimesOfLayer(model, 1, 10, 50).qkv_s, 3 * TimesOfLayer(model, 0, 10, 50).qkv_s);
  EXPECT_DOUBLE_EQ(TimesOfLayer(model, 1, 10, 50).rest_s, 3 * TimesOfLayer(model, 0, 10, 50).rest_s);
}

TEST(CostModel, CountsPairsOfTheRectangleOrBelowTheDiagonal) {
  EXPECT_EQ(AttentionPairs(4, 7, 7, false), 21);
  EXPECT_EQ(AttentionPairs(4, 7, 9, false), 27);
  EXPECT_EQ(AttentionPairs(4, 7, 7, true), 5 + 6 + 7);
  EXPECT_EQ(AttentionPairs(4, 7, 9, true), 5 + 6 + 7);
  EXPECT_EQ(AttentionPairs(0, 131072, 131072, false), int64_t{131072} * 131072);
}

TEST(CostModel, RefusesWhatCannotBeAndNamesIt) {
  const auto refused = [](auto change, int width, const char* text) {
    CostModel model = Model();
    change(model);
    const absl::Status status = CheckCostModel(model, width);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  EXPECT_TRUE(CheckCostModel(Model(), 16).ok());
  refused([](CostModel&) {}, 0, "width: 0 is not at least 1");
  refused([](CostModel& m) { m.layers = 0; }, 1, "layers: 0 is not between 1 and 10000");
  refused([](CostModel& m) { m.layers = 10001; }, 1, "layers: 10001 is not between 1 and 10000");
  refused([](CostModel& m) { m.fixed_s = -1; }, 1, "fixed_s: -1 is not a number of at least 0");
  refused([](CostModel& m) { m.linear_s_per_token = std::nan(""); }, 1, "linear_s_per_token: nan");
  refused([](CostModel& m) { m.attention_s_per_token_pair = std::numeric_limits<double>::infinity(); }, 1,
          "attention_s_per_token_pair: inf");
  refused([](CostModel& m) { m.window_layers = 5; }, 1, "window_layers: 5 is not between 0 and the 4 layers");
  refused([](CostModel& m) { m.window_layers = 2; }, 1, "window: 0 tokens beside window_layers 2");
  refused([](CostModel& m) { m.window = 100; }, 1, "window: 100 tokens beside window_layers 0");
  refused([](CostModel& m) { m.floor_s = -1; }, 1, "floor_s");
  refused([](CostModel& m) { m.logits_s = -1; }, 1, "logits_s");
  refused([](CostModel& m) { m.kv_bytes_per_token = -1; }, 1, "kv_bytes_per_token");
  refused([](CostModel& m) { m.qkv_share = 1.5; }, 1, "qkv_share: 1.5 is not between 0 and 1");
  refused([](CostModel& m) { m.receive_ahead_layers = 0; }, 1, "receive_ahead_layers");
  refused([](CostModel& m) { m.worker_factors = {1, 1}; }, 3, "worker_factors: 2 given, a chain of 3 workers");
  refused([](CostModel& m) { m.worker_factors = {1, 0}; }, 2, "worker_factors[1]: 0 is not above 0");
  refused([](CostModel& m) { m.together_factor = 0; }, 1, "together_factor: 0 is not above 0");
  refused([](CostModel& m) { m.links.resize(2); }, 4, "links: 2 given, a chain of 4 workers needs 3");
  refused([](CostModel& m) { m.links.clear(); }, 1, "links: 0 given");
  refused([](CostModel& m) { m.links[0].bytes_per_s = 0; }, 2, "links[0].bytes_per_s: 0 is not above 0");
  refused([](CostModel& m) { m.buses = {{{0}, 0}}; }, 2, "buses[0].bytes_per_s: 0 is not above 0");
  refused([](CostModel& m) { m.buses = {{{-1}, 1}}; }, 2, "buses[0].links: there is no link -1");
  refused([](CostModel& m) { m.buses = {{{0, 1}, 1}, {{2, 1}, 1}}; }, 4, "buses[1].links: link 1 is on buses[0]");
  refused([](CostModel& m) { m.buses = {{{0}, 1}, {{}, 1}}; }, 4, "buses[1].links: missing");
  refused(
      [](CostModel& m) {
        m.links.resize(2);
        m.buses = {{{2}, 1}};
      },
      3, "buses[0].links: there is no link 2");
  refused([](CostModel& m) { m.links[0].latency_s = -1; }, 2, "links[0].latency_s");
  refused([](CostModel& m) { m.links[0].slowdown.probability = 2; }, 2, "slowdown.probability: 2");
  refused([](CostModel& m) { m.links[0].slowdown.max_factor = 0.5; }, 2, "slowdown.max_factor: 0.5");
}

TEST(CostModel, CountsPairsOfAWindowQueryByQuery) {
  for (const int64_t window : {1, 2, 5, 6, 7, 100}) {
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {0, 9}, {4, 7}, {6, 6}, {6, 20}}) {
      int64_t pairs = 0;
      for (int64_t query = begin; query < end; ++query) pairs += std::min(query + 1, window);
      EXPECT_EQ(WindowPairs(begin, end, window), pairs) << begin << " to " << end << ", window " << window;
    }
  }
}

TEST(CostModel, WindowLayersLieEvenlyAmongTheOthers) {
  const auto layers = [](int64_t all, int64_t windowed) {
    CostModel model;
    model.layers = all;
    model.window_layers = windowed;
    std::string kinds;
    for (int64_t layer = 0; layer < all; ++layer) kinds += IsWindowLayer(model, layer) ? 'w' : '.';
    return kinds;
  };
  EXPECT_EQ(layers(4, 0), "....");
  EXPECT_EQ(layers(4, 4), "wwww");
  EXPECT_EQ(layers(6, 3), ".w.w.w");
  EXPECT_EQ(layers(12, 10), ".wwwww.wwwww");
}

}  // namespace
}  // namespace runahead
