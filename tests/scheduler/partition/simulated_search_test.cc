#include "scheduler/partition/simulated_search.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

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
}

}  // namespace
}  // namespace runahead
