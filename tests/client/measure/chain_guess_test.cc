#include "client/measure/chain_guess.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

// A single worker takes 1 ms a token and 1 us a pair of tokens that causality needs.
double Seconds(double tokens) {
  return 1e-3 * tokens + 1e-6 * tokens * (tokens + 1) / 2;
}

std::vector<PartitionFileEntry> Singles(const std::vector<int64_t>& lengths) {
  std::vector<PartitionFileEntry> entries;
  for (const int64_t tokens : lengths) {
    PartitionFileEntry& entry = entries.emplace_back();
    entry.width = 1;
    entry.tokens = tokens;
    entry.fractions = {1};
    entry.measured_ttft_s = Seconds(static_cast<double>(tokens));
  }
  return entries;
}

TEST(ChainGuess, ThreeMeasuredSinglesTellWhatAPromptCosts) {
  const auto cost = CostOfSingles(Singles({512, 1024, 4096}));
  ASSERT_TRUE(cost.has_value());
  const std::vector<int64_t> alone = {8192};
  EXPECT_NEAR(PredictSeconds(*cost, alone), Seconds(8192), 0.01 * Seconds(8192));
}

TEST(ChainGuess, FewerTellNothingNorDoChainsOrPredictions) {
  EXPECT_FALSE(CostOfSingles(Singles({512, 1024})).has_value());
  std::vector<PartitionFileEntry> entries = Singles({512, 1024, 2048, 4096});
  entries[0].width = 2;
  entries[1].measured_ttft_s.reset();
  EXPECT_FALSE(CostOfSingles(entries).has_value());
}

// The last worker looks back at the whole prompt, so it takes fewer tokens, and no worker is waited for.
TEST(ChainGuess, PartsFallAndAddUp) {
  const CostModel cost = *CostOfSingles(Singles({512, 1024, 4096}));
  for (const int width : {2, 3, 6, 8}) {
    const std::vector<int64_t> parts = GuessParts(cost, 8192, width);
    ASSERT_EQ(parts.size(), static_cast<size_t>(width));
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), 8192);
    EXPECT_GT(parts.front(), parts.back());
    EXPECT_LT(PredictSeconds(cost, parts), PredictSeconds(cost, GuessParts(cost, 8192, width - 1))) << width;
  }
  EXPECT_THAT(GuessParts(cost, 2, 2), ElementsAre(1, 1));
}

}  // namespace
}  // namespace runahead
