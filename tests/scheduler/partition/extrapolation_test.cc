#include "scheduler/partition/extrapolation.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/partition_search.h"

namespace runahead {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

constexpr double kExact = 1e-12;

std::vector<double> Fractions(std::vector<double> inner, std::vector<double> middle, std::vector<double> outer,
                              const std::vector<int64_t>& lengths, int64_t tokens) {
  return ExtrapolateFractions({lengths[0], inner}, {lengths[1], middle}, {lengths[2], outer}, tokens);
}

TEST(ExtrapolateFractions, GoesOnLinearlyInTheLengthBelow) {
  EXPECT_THAT(Fractions({.62, .38}, {.60, .40}, {.58, .42}, {3000, 2000, 1000}, 500),
              ElementsAre(DoubleNear(.57, kExact), DoubleNear(.43, kExact)));
}

TEST(ExtrapolateFractions, GoesOnLinearlyInTheInverseLengthAbove) {
  // 0.70 - 100 / tokens, whose limit is 0.70.
  const auto at = [](double tokens) { return std::vector<double>{.70 - 100 / tokens, .30 + 100 / tokens}; };
  for (const int64_t tokens : {5000, 64000, 1000000000}) {
    const std::vector<double> wanted = at(static_cast<double>(tokens));
    EXPECT_THAT(Fractions(at(1000), at(2000), at(4000), {1000, 2000, 4000}, tokens),
                ElementsAre(DoubleNear(wanted[0], kExact), DoubleNear(wanted[1], kExact)));
  }
}

TEST(ExtrapolateFractions, TrustsATrendAsFarAsItForetoldTheOutermost) {
  // From 2000 and 3000 the rule foretells 0.58 at 1000: half of that step came about, so half of the next is made.
  EXPECT_THAT(Fractions({.62, .38}, {.60, .40}, {.59, .41}, {3000, 2000, 1000}, 500),
              ElementsAre(DoubleNear(.5875, kExact), DoubleNear(.4125, kExact)));
}

TEST(ExtrapolateFractions, HoldsTheOutermostWhereTheTrendTurned) {
  EXPECT_THAT(Fractions({.62, .38}, {.60, .40}, {.61, .39}, {3000, 2000, 1000}, 1), ElementsAre(.61, .39));
  EXPECT_THAT(Fractions({.62, .38}, {.62, .38}, {.61, .39}, {3000, 2000, 1000}, 1), ElementsAre(.61, .39));
}

TEST(ExtrapolateFractions, KeepsTheOrderOfNeighbours) {
  // Unbounded, the head would fall to 0.46.
  EXPECT_THAT(Fractions({.66, .34}, {.60, .40}, {.53, .47}, {3000, 2000, 1000}, 1),
              ElementsAre(DoubleNear(.5, kExact), DoubleNear(.5, kExact)));
}

TEST(ExtrapolateFractions, NeverTakesMoreThanHalfOfAPart) {
  EXPECT_THAT(Fractions({.50, .50}, {.70, .30}, {.90, .10}, {3000, 2000, 1000}, 1),
              ElementsAre(DoubleNear(.95, kExact), DoubleNear(.05, kExact)));
}

// Llama-7B on 4 A100 (paper_figures_test.cc), with equal workers and with a slow head.
class AgainstASearch : public ::testing::TestWithParam<std::vector<double>> {
 protected:
  AgainstASearch() {
    model_.layers = 32;
    model_.kv_bytes_per_token = 2 * 32 * 4096 * 2;
    model_.fixed_s = 0.002;
    model_.linear_s_per_token = 0.0848 / 1024;
    model_.attention_s_per_token_pair = 0.02159 / 1048576;
    model_.links[0] = {59e-6, 300e9, {}};
    model_.worker_factors = GetParam();
  }

  double Ttft(int64_t tokens, absl::Span<const double> fractions) const {
    return SimulateChain(model_, Schedule::kKvr, RoundParts(tokens, fractions))->ttft_s;
  }
  std::vector<double> Searched(int64_t tokens) const {
    const auto simulate = [this](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
      return SimulateChain(model_, Schedule::kKvr, parts)->ttft_s;
    };
    const SearchResult found = SearchPartition(tokens, 4, ObjectiveOf(simulate), {}).value();
    std::vector<double> fractions;
    for (const int64_t part : found.parts) {
      fractions.push_back(static_cast<double>(part) / static_cast<double>(tokens));
    }
    return fractions;
  }

  CostModel model_;
};

TEST_P(AgainstASearch, LosesLessThanHalfOfWhatHoldingTheOutermostLoses) {
  for (const auto& [lengths, tokens] : {std::pair(std::vector<int64_t>{16384, 8192, 4096}, int64_t{1024}),
                                        {{16384, 8192, 4096}, 2048},
                                        {{4096, 8192, 16384}, 32768},
                                        {{4096, 8192, 16384}, 65536}}) {
    const std::vector<double> outer = Searched(lengths[2]);
    const double best = Ttft(tokens, Searched(tokens));
    const double extrapolated =
        Ttft(tokens, Fractions(Searched(lengths[0]), Searched(lengths[1]), outer, lengths, tokens));
    const double held = Ttft(tokens, outer);
    EXPECT_LT(extrapolated - best, 0.5 * (held - best)) << tokens << " tokens: best " << best << " s";
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, AgainstASearch,
                         ::testing::Values(std::vector<double>{1, 1, 1, 1}, std::vector<double>{2, 2, 1, 1}));

}  // namespace
}  // namespace runahead
