#include "scheduler/partition/simulated_search.h"

#include <numeric>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

CostModel OverLinksOf(double bytes_per_s) {
  CostModel model;
  model.layers = 8;
  model.kv_bytes_per_token = 8 * 1024;
  model.linear_s_per_token = 1e-4;
  model.attention_s_per_token_pair = 1e-8;
  model.links[0].bytes_per_s = bytes_per_s;
  return model;
}

// Over links that take six times as long for a token as it takes to compute, a first worker with a quarter of the
// prompt is too much. The paper's search cannot get below that; a thorough one does.
TEST(SimulatedSearch, OnlyAThoroughOneGoesFarFromEvenParts) {
  const CostModel model = OverLinksOf(1.3e7);
  const SearchResult paper = SearchSimulated(model, 4096, 2, false).value();
  const SearchResult thorough = SearchSimulated(model, 4096, 2, true).value();
  EXPECT_GT(paper.parts[0], 1024);
  EXPECT_LT(thorough.parts[0], 1024);
  EXPECT_LT(thorough.best.seconds, paper.best.seconds);
}

// A prompt so long that its strides have many levels: the last is one token.
TEST(SimulatedSearch, HalvesItsStridesDownToOneToken) {
  const SearchResult found = SearchSimulated(OverLinksOf(1e10), 10000, 3, false).value();
  EXPECT_EQ(found.levels.front().stride, 10000 / 3 / 4);
  EXPECT_EQ(found.levels.back().stride, 1);
  EXPECT_EQ(std::accumulate(found.parts.begin(), found.parts.end(), int64_t{0}), 10000);
}

// Llama-7B's costs with fewer layers: over a bus of 8 Gbit/s the KV of even parts takes many times what one worker
// computes, and a wide search has evaluations for a level or two only.
CostModel OverASlowBus() {
  CostModel model;
  model.layers = 2;
  model.kv_bytes_per_token = 524288;
  model.fixed_s = 0.016;
  model.linear_s_per_token = 7.1e-5;
  model.attention_s_per_token_pair = 2.036e-8;
  model.receive_ahead_layers = kRunaheadReceiveAhead;
  model.links[0].bytes_per_s = 1e9;
  model.buses = {{{}, 1e9}};
  return model;
}

double Simulated(const CostModel& model, const std::vector<int64_t>& parts) {
  return SimulateChain(model, Schedule::kKvr, parts)->ttft_s;
}

class SlowBusTest : public ::testing::TestWithParam<int> {};

TEST_P(SlowBusTest, AThoroughSearchIsNeverWorseThanWhatItStartsFrom) {
  constexpr int64_t kTokens = 8192;
  const int width = GetParam();
  const CostModel model = OverASlowBus();
  const SearchResult found = SearchSimulated(model, kTokens, width, true, kLeastSimulations).value();
  EXPECT_LE(found.evaluations, kLeastSimulations);
  EXPECT_EQ(std::accumulate(found.parts.begin(), found.parts.end(), int64_t{0}), kTokens);
  EXPECT_EQ(Simulated(model, found.parts), found.best.seconds);
  EXPECT_LT(found.best.seconds, Simulated(model, {kTokens})) << "one worker alone";

  std::vector<std::vector<int64_t>> seeds = CornerPartitions(kTokens, width);
  seeds.push_back(EvenParts(kTokens, width).value());
  seeds.push_back(SearchSimulated(model, kTokens, width, false, kLeastSimulations)->parts);
  CostModel free = model;
  free.buses.clear();
  seeds.push_back(SearchSimulated(free, kTokens, width, true, kLeastSimulations)->parts);
  for (const std::vector<int64_t>& seed : seeds) {
    EXPECT_LE(found.best.seconds, Simulated(model, seed)) << absl::StrJoin(seed, ",");
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, SlowBusTest, ::testing::Range(2, kMaxSearchWidth + 1));

TEST(SimulatedSearch, SaysThatItsEvaluationsEnded) {
  const SearchResult found = SearchSimulated(OverASlowBus(), 8192, 16, true, kLeastSimulations).value();
  EXPECT_EQ(found.end, SearchEnd::kEvaluations);
  EXPECT_EQ(SearchSimulated(OverASlowBus(), 64, 2, true).value().end, SearchEnd::kFinished);
}

TEST(CornerPartitions, AreAllOnOneWorkerOrEvenOnTheFirstOrTheLastFew) {
  EXPECT_THAT(CornerPartitions(10, 1), ::testing::IsEmpty());
  EXPECT_THAT(CornerPartitions(10, 3),
              ::testing::UnorderedElementsAre(std::vector<int64_t>{1, 1, 8}, std::vector<int64_t>{8, 1, 1},
                                              std::vector<int64_t>{1, 8, 1}, ::testing::ElementsAre(1, _, _),
                                              ::testing::ElementsAre(_, _, 1)));
}

TEST(SimulatedSearch, RefusesWhatCannotBe) {
  const auto refused = [](const CostModel& model, int64_t tokens, int width) {
    const auto found = SearchSimulated(model, tokens, width, false);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(found.status().message());
  };
  CostModel model = OverLinksOf(1e10);
  EXPECT_THAT(refused(model, 3, 4), HasSubstr("width"));
  EXPECT_THAT(refused(model, 100, 17), HasSubstr("width"));
  EXPECT_THAT(refused(model, 100, 0), HasSubstr("width"));
  model.worker_factors = {1, 2};
  EXPECT_THAT(refused(model, 100, 3), HasSubstr("worker_factors"));
  EXPECT_THAT(SearchSimulated(OverLinksOf(1e10), 100, 3, true, kLeastSimulations - 1).status().message(),
              HasSubstr("max_evaluations"));
}

}  // namespace
}  // namespace runahead
