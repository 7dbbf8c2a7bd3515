#include "scheduler/partition/rest_of_prompt.h"

#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;

double Even(int64_t tokens) {
  return 1e-3 * static_cast<double>(tokens);
}

double Growing(int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return 1e-3 * n + 1e-6 * n * n;
}

std::vector<double> EvenShares(int width) {
  return std::vector<double>(width, 1.0 / width);
}

double Untimed(int64_t) {
  return 0;
}

TEST(RestOfPrompt, WithNothingKnownIsTheWholePrompt) {
  EXPECT_EQ(SecondsOfRest(1000, 0, Even), 1);
  EXPECT_THAT(FractionsOfRest(1000, 0, EvenShares(2), Even), ElementsAre(0.5, 0.5));
}

TEST(RestOfPrompt, OnAChainItTakesNoLessThanAPromptOfAsManyTokens) {
  const auto chain = [](int64_t tokens) { return 0.5 + Even(tokens); };
  EXPECT_NEAR(SecondsOfRest(6000, 5900, chain), 6.5 / 60, 1e-9);
  EXPECT_NEAR(SecondsOfChainRest(6000, 5900, chain), 0.6, 1e-9);
  EXPECT_NEAR(SecondsOfChainRest(6000, 0, chain), 6.5, 1e-9);
  EXPECT_NEAR(SecondsOfChainRest(10000, 9000, Growing), 20, 1e-9) << "it attends over what is known";
}

TEST(RestOfPrompt, PartsThatCostTheSameATokenAreEven) {
  EXPECT_THAT(RoundParts(800, FractionsOfRest(1000, 200, EvenShares(4), Even)), Each(AllOf(Ge(199), Le(201))));
  EXPECT_THAT(FractionsOfRest(1000, 200, EvenShares(1), Even), ElementsAre(1));
}

// The references add up what each part takes by the formula, which the search has not.
TEST(RestOfPrompt, PartsTakeEquallyLongWhereLaterTokensAttendOverMore) {
  for (const int64_t known : {0, 512, 4096, 15000}) {
    for (const int width : {2, 3, 5}) {
      const int64_t prompt = 16384;
      const std::vector<double> fractions = FractionsOfRest(prompt, known, EvenShares(width), Growing);
      ASSERT_EQ(fractions.size(), static_cast<size_t>(width));
      EXPECT_NEAR(std::accumulate(fractions.begin(), fractions.end(), 0.0), 1, 1e-9);
      double begin = static_cast<double>(known);
      for (const double fraction : fractions) {
        const double end = begin + fraction * static_cast<double>(prompt - known);
        const double took = 1e-3 * (end - begin) + 1e-6 * (end * end - begin * begin);
        EXPECT_NEAR(took, (Growing(prompt) - Growing(known)) / width, 0.1) << "two tokens of the last ones are 0.07 s";
        begin = end;
      }
      EXPECT_GT(fractions.front(), fractions.back());
    }
  }
}

TEST(RestOfPrompt, PartsTakeTheirSharesOfTheTime) {
  const std::vector<double> fractions = FractionsOfRest(9000, 1000, std::vector<double>{0.5, 0.3, 0.2}, Growing);
  double begin = 1000, took = 0;
  for (const auto& [fraction, share] : {std::pair(fractions[0], 0.5), {fractions[1], 0.3}}) {
    const double end = begin + 8000 * fraction;
    took += share * (Growing(9000) - Growing(1000));
    EXPECT_NEAR(1e-3 * end + 1e-6 * end * end - Growing(1000), took, 0.02) << "a token of the last ones is 0.018 s";
    begin = end;
  }
}

TEST(RestOfPrompt, WhereNoTimeIsKnownPartsHaveTheirSharesOfTheTokens) {
  EXPECT_THAT(FractionsOfRest(1000, 200, EvenShares(2), Untimed), ElementsAre(0.5, 0.5));
  EXPECT_THAT(FractionsOfRest(1000, 200, std::vector<double>{0.7, 0.3}, Untimed), ElementsAre(0.7, 0.3));
  EXPECT_THAT(FractionsOfRest(40, 32, EvenShares(2), [](int64_t) { return 1.0; }), ElementsAre(0.5, 0.5))
      << "all take the same";
}

TEST(RestOfPrompt, APartThatTakesNoTimeHasATokenAllTheSame) {
  EXPECT_THAT(RoundParts(800, FractionsOfRest(1000, 200, std::vector<double>{0, 0, 1}, Even)), ElementsAre(1, 1, 798));
  EXPECT_THAT(RoundParts(800, FractionsOfRest(1000, 200, std::vector<double>{1, 0, 0}, Even)), ElementsAre(798, 1, 1));
}

TEST(RestOfPrompt, EachTokenOfAShortRestIsAPartOfItsOwn) {
  const std::vector<double> fractions = FractionsOfRest(103, 100, EvenShares(3), Even);
  EXPECT_THAT(RoundParts(3, fractions), ElementsAre(1, 1, 1));
}

TEST(PartsBehind, FollowTheTableWhereItKnowsTimesAndAreEvenElse) {
  EXPECT_THAT(*PartitionTable().PartsBehind(512, 612, 2), ElementsAre(50, 50));
  std::vector<PartitionEntry> entries;
  for (const int64_t tokens : {1024, 2048, 4096, 8192, 16384}) {
    entries.push_back({1, tokens, {1}, Growing(tokens)});
  }
  const PartitionTable table = PartitionTable::Create(entries).value();
  const std::vector<int64_t> parts = table.PartsBehind(4096, 12288, 2).value();
  EXPECT_EQ(parts[0] + parts[1], 8192);
  EXPECT_GT(parts[0], parts[1]);
  const double middle = 4096.0 + static_cast<double>(parts[0]);
  EXPECT_NEAR(1e-3 * middle + 1e-6 * middle * middle, (Growing(4096) + Growing(12288)) / 2, 0.02 * Growing(12288));
}

// What one worker takes for the tokens [begin, end).
double Took(int64_t begin, int64_t end) {
  return Growing(end) - Growing(begin);
}

PartitionTable TableOf(const std::vector<double>& fractions) {
  std::vector<PartitionEntry> entries;
  for (const int64_t tokens : {1000, 2000, 4000, 8000, 16000}) {
    entries.push_back({1, tokens, {1}, Growing(tokens)});
    entries.push_back({static_cast<int>(fractions.size()), tokens, fractions, 0});
  }
  return PartitionTable::Create(entries).value();
}

// A third worker that is slow has little of a prompt by the table, and as little of a rest's time.
TEST(PartsBehind, TakeTheSharesOfTimeThatTheTableGivesAPromptOfAsManyTokens) {
  const PartitionTable table = TableOf({0.6, 0.3, 0.1});
  for (const int64_t s0 : {1500, 3000, 9000}) {
    const std::vector<int64_t> parts = table.PartsBehind(s0, s0 + 4000, 3).value();
    const int64_t rest_end = s0 + 4000, first = s0 + parts[0], second = first + parts[1];
    EXPECT_NEAR(Took(s0, first) / Took(s0, rest_end), Took(0, 2400) / Took(0, 4000), 0.002) << s0;
    EXPECT_NEAR(Took(first, second) / Took(s0, rest_end), Took(2400, 3600) / Took(0, 4000), 0.002) << s0;
  }
}

// So a beginning that is hardly known changes hardly anything.
TEST(PartsBehind, BehindNothingAreThoseOfThePrompt) {
  const PartitionTable table = TableOf({0.6, 0.3, 0.1});
  const std::vector<int64_t> behind = table.PartsBehind(0, 4000, 3).value(), whole = table.Lookup(4000, 3)->parts;
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(behind[i], whole[i], 1);
}

// 256 tokens take two workers nearly as long as 1,024, so their parts there are chance.
TEST(PartsBehind, DoNotFollowALengthWhosePartsDoNotMatter) {
  std::vector<PartitionEntry> entries;
  for (const int64_t tokens : {256, 1024, 4096}) entries.push_back({1, tokens, {1}, Growing(tokens)});
  entries.push_back({2, 256, {0.05, 0.95}, 1.1});
  entries.push_back({2, 1024, {0.6, 0.4}, 1.2});
  entries.push_back({2, 4096, {0.6, 0.4}, 12});
  const PartitionTable table = PartitionTable::Create(entries).value();
  const int64_t first = 3000 + table.PartsBehind(3000, 3300, 2)->front();
  EXPECT_NEAR(Took(3000, first) / Took(3000, 3300), Took(0, 614) / Took(0, 1024), 0.01);
}

// All but a token each on the last worker, as over slow links.
TEST(PartsBehind, KeepACornerACorner) {
  EXPECT_THAT(*TableOf({0.0001, 0.0001, 0.9998}).PartsBehind(3000, 4000, 3), ElementsAre(1, 1, 998));
}

// Times of runs are noisy.
TEST(PartsBehind, AddUpWhereALongerPromptTookLess) {
  std::vector<PartitionEntry> entries;
  for (const auto& [tokens, seconds] : {std::pair(1000, 1.0), {2000, 0.8}, {4000, 3.0}}) {
    entries.push_back({1, tokens, {1}, seconds});
    entries.push_back({3, tokens, {0.4, 0.2, 0.4}, 0});
  }
  const PartitionTable table = PartitionTable::Create(entries).value();
  for (const int64_t s0 : {100, 900, 1500, 1900, 5000}) {
    for (const int64_t rest : {3, 100, 1000, 2500}) {
      const std::vector<int64_t> parts = table.PartsBehind(s0, s0 + rest, 3).value();
      EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), rest);
      EXPECT_THAT(parts, Each(Ge(1)));
    }
  }
}

TEST(PartsBehind, NeedATokenForEachWorker) {
  EXPECT_FALSE(PartitionTable().PartsBehind(-1, 10, 2).ok());
  EXPECT_FALSE(PartitionTable().PartsBehind(512, 513, 2).ok());
  EXPECT_FALSE(PartitionTable().PartsBehind(512, 512, 1).ok());
  EXPECT_FALSE(PartitionTable().PartsBehind(0, 10, 0).ok());
}

}  // namespace
}  // namespace runahead
