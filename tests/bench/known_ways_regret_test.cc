#include "tests/bench/known_ways_regret.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(KnownWaysRegret, IsMeasuredFromTheBestMedianOfTheThree) {
  const CaseTimes times{.by_way = {{{1.0, 1.2, 9.0}, {0.8, 0.7, 0.8}, {2.0}}}, .planned = {0.9}, .chosen = {1}};
  EXPECT_EQ(times.best(), 1u);
  EXPECT_DOUBLE_EQ(times.RegretOf(0), 1.2 / 0.8 - 1);
  EXPECT_DOUBLE_EQ(times.RegretOf(2), 2.0 / 0.8 - 1);
  EXPECT_DOUBLE_EQ(times.RegretOfChoice(), 0);
  EXPECT_DOUBLE_EQ(times.RegretAsMeasured(), 0.9 / 0.8 - 1);
}

TEST(KnownWaysRegret, OfAChoiceThatVariesIsTheMean) {
  const CaseTimes times{.by_way = {{{1}, {2}, {4}}}, .planned = {}, .chosen = {0, 1, 2, 0}};
  EXPECT_DOUBLE_EQ(times.RegretOfChoice(), (0 + 1 + 3 + 0) / 4.0);
}

TEST(KnownWaysRegret, AtMostFivePercentAreAboveThe95thPercentile) {
  std::vector<double> regrets;
  for (int i = 100; i > 0; --i) regrets.push_back(i);
  EXPECT_EQ(SummaryOf(regrets).p95, 95);
  EXPECT_EQ(SummaryOf(regrets).most, 100);
  EXPECT_DOUBLE_EQ(SummaryOf(regrets).mean, 50.5);
  EXPECT_EQ(SummaryOf({3, 1, 2}).p95, 3);
  EXPECT_EQ(SummaryOf({}).p95, 0);
}

TEST(KnownWaysRegret, CasesAreDrawnWithinTheirBoundsAndAgainByTheirSeed) {
  const std::vector<KnownCase> cases = DrawCases(500, 34, 8, {0, 1}), again = DrawCases(500, 34, 8, {0, 1});
  int alone = 0, paced = 0, most_load = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].known, again[i].known);
    EXPECT_EQ(cases[i].fresh, again[i].fresh);
    EXPECT_TRUE(cases[i].known >= 64 && cases[i].known <= 6000) << cases[i].known;
    EXPECT_TRUE(cases[i].fresh >= 32 && cases[i].fresh <= 3000) << cases[i].fresh;
    alone += cases[i].load == 0;
    paced += cases[i].gbps == 1;
    most_load = std::max(most_load, cases[i].load);
  }
  EXPECT_TRUE(alone > 200 && alone < 300) << alone;
  EXPECT_TRUE(paced > 200 && paced < 300) << paced;
  EXPECT_EQ(most_load, 8);
}

}  // namespace
}  // namespace runahead
