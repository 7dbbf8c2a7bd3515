#include "client/measure/chain_guess.h"

#include <algorithm>
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
  const auto cost = CostOfChains(UnknownShape(), {Singles({512, 1024, 4096}), {}});
  ASSERT_TRUE(cost.has_value());
  const std::vector<int64_t> alone = {8192};
  EXPECT_NEAR(PredictSeconds(*cost, alone), Seconds(8192), 0.01 * Seconds(8192));
}

TEST(ChainGuess, FewerTellNothingNorDoChainsOrPredictions) {
  EXPECT_FALSE(CostOfChains(UnknownShape(), {Singles({512, 1024}), {}}).has_value());
  std::vector<PartitionFileEntry> entries = Singles({512, 1024, 2048, 4096});
  entries[0].width = 2;
  entries[1].measured_ttft_s.reset();
  EXPECT_FALSE(CostOfChains(UnknownShape(), {entries, {}}).has_value());
}

// The last worker looks back at the whole prompt, so it takes fewer tokens, and no worker is waited for.
TEST(ChainGuess, PartsFallAndAddUp) {
  const CostModel cost = *CostOfChains(UnknownShape(), {Singles({512, 1024, 4096}), {}});
  for (const int width : {2, 3, 6, 8}) {
    const std::vector<int64_t> parts = GuessParts(cost, 8192, width);
    ASSERT_EQ(parts.size(), static_cast<size_t>(width));
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), 8192);
    EXPECT_GT(parts.front(), parts.back());
    EXPECT_LT(PredictSeconds(cost, parts), PredictSeconds(cost, GuessParts(cost, 8192, width - 1))) << width;
  }
  EXPECT_THAT(GuessParts(cost, 2, 2), ElementsAre(1, 1));
}

// A line whose second link is slow. What the probes take there is what a real one would say; nothing else is told.
class ProbedLine {
 public:
  ProbedLine() {
    truth_.layers = 24;
    truth_.kv_bytes_per_token = 1000;
    truth_.linear_s_per_token = 1e-4;
    truth_.attention_s_per_token_pair = 2e-8;
    truth_.causal_skip = true;
    truth_.receive_ahead_layers = kRunaheadReceiveAhead;
    truth_.links = {{0, 1e9}, {0, 2e6}, {0, 1e9}};
  }

  std::vector<TimedRun> Probes(const std::vector<PartitionFileEntry>& searched) const {
    std::vector<TimedRun> runs;
    for (const std::vector<int64_t>& parts : ProbePartitions(searched, 4096, 4)) {
      CostModel truth = truth_;
      // Where one has nearly all of the prompt, the others stand still and slow nobody down.
      if (*std::max_element(parts.begin(), parts.end()) > 4000) truth.together_factor = 1;
      runs.push_back({Schedule::kKvr, parts, PredictSeconds(truth, parts)});
    }
    return runs;
  }

  CostModel truth_;
};

TEST(ChainGuess, ProbesTellWhatLinksCost) {
  const ProbedLine line;
  const std::vector<TimedRun> probes = line.Probes({});
  CostModel shape;
  shape.layers = 24;
  shape.kv_bytes_per_token = 1000;
  const auto cost = CostOfChains(shape, {{}, probes});
  ASSERT_TRUE(cost.has_value());
  ASSERT_EQ(cost->links.size(), 3u);
  EXPECT_NEAR(cost->links[1].bytes_per_s, 2e6, 0.05 * 2e6);
  EXPECT_NEAR(cost->together_factor, 1, 0.05);
  EXPECT_GT(cost->links[0].bytes_per_s, 1e7);
  EXPECT_GT(cost->links[2].bytes_per_s, 1e7);
  for (const int width : {3, 4}) {
    const std::vector<int64_t> guess = GuessParts(*cost, 8192, width), best = GuessParts(line.truth_, 8192, width);
    EXPECT_LT(PredictSeconds(line.truth_, guess), 1.05 * PredictSeconds(line.truth_, best)) << width;
  }
}

TEST(ChainGuess, ProbesTellWhatCompanyCosts) {
  ProbedLine line;
  line.truth_.links = {{0, 1e9}};
  line.truth_.together_factor = 1.3;
  const std::vector<TimedRun> probes = line.Probes({});
  const auto cost = CostOfChains(UnknownShape(), {{}, probes});
  ASSERT_TRUE(cost.has_value());
  EXPECT_NEAR(cost->together_factor, 1.3, 0.03);
}

// The table's own single prompts are not run again, and lengths come from it as far as it has them.
TEST(ChainGuess, ProbesOnlyWhatIsNotKnown) {
  EXPECT_THAT(ProbePartitions(Singles({512, 1024, 4096}), 4096, 2),
              ElementsAre(ElementsAre(2048, 2048), ElementsAre(4095, 1)));
  EXPECT_THAT(ProbePartitions(Singles({4096}), 4096, 3),
              ElementsAre(ElementsAre(512), ElementsAre(1024), ElementsAre(1366, 1365, 1365), ElementsAre(4094, 1, 1),
                          ElementsAre(1, 4094, 1)));
  EXPECT_THAT(ProbePartitions({}, 2, 2), ElementsAre(ElementsAre(2), ElementsAre(1, 1), ElementsAre(1, 1)));
}

// Without the shape of the model links come out in tokens a second, and mean the same.
TEST(ChainGuess, TheShapeOfTheModelNeedNotBeKnown) {
  const ProbedLine line;
  const std::vector<TimedRun> probes = line.Probes({});
  const auto cost = CostOfChains(UnknownShape(), {{}, probes});
  ASSERT_TRUE(cost.has_value());
  EXPECT_NEAR(cost->links[1].bytes_per_s, 2e3, 0.1 * 2e3);
}

}  // namespace
}  // namespace runahead
