#include "scheduler/partition/rest_of_prompt.h"

#include <numeric>

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

double Untimed(int64_t) {
  return 0;
}

TEST(RestOfPrompt, WithNothingKnownIsTheWholePrompt) {
  EXPECT_EQ(SecondsOfRest(1000, 0, Even), 1);
  EXPECT_THAT(FractionsOfRest(1000, 0, 2, Even), ElementsAre(0.5, 0.5));
}

TEST(RestOfPrompt, OnAChainItTakesNoLessThanAPromptOfAsManyTokens) {
  const auto chain = [](int64_t tokens) { return 0.5 + Even(tokens); };
  EXPECT_NEAR(SecondsOfRest(6000, 5900, chain), 6.5 / 60, 1e-9);
  EXPECT_NEAR(SecondsOfChainRest(6000, 5900, chain), 0.6, 1e-9);
  EXPECT_NEAR(SecondsOfChainRest(6000, 0, chain), 6.5, 1e-9);
  EXPECT_NEAR(SecondsOfChainRest(10000, 9000, Growing), 20, 1e-9) << "it attends over what is known";
}

TEST(RestOfPrompt, PartsThatCostTheSameATokenAreEven) {
  EXPECT_THAT(RoundParts(800, FractionsOfRest(1000, 200, 4, Even)), Each(AllOf(Ge(199), Le(201))));
  EXPECT_THAT(FractionsOfRest(1000, 200, 1, Even), ElementsAre(1));
}

// The references add up what each part takes by the formula, which the search has not.
TEST(RestOfPrompt, PartsTakeEquallyLongWhereLaterTokensAttendOverMore) {
  for (const int64_t known : {0, 512, 4096, 15000}) {
    for (const int width : {2, 3, 5}) {
      const int64_t prompt = 16384;
      const std::vector<double> fractions = FractionsOfRest(prompt, known, width, Growing);
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

TEST(RestOfPrompt, WhereNoTimeIsKnownPartsAreEven) {
  EXPECT_THAT(FractionsOfRest(1000, 200, 2, Untimed), ElementsAre(0.5, 0.5));
  EXPECT_THAT(FractionsOfRest(40, 32, 2, [](int64_t) { return 1.0; }), ElementsAre(0.5, 0.5)) << "all take the same";
}

TEST(RestOfPrompt, EachTokenOfAShortRestIsAPartOfItsOwn) {
  const std::vector<double> fractions = FractionsOfRest(103, 100, 3, Even);
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

TEST(PartsBehind, NeedATokenForEachWorker) {
  EXPECT_FALSE(PartitionTable().PartsBehind(512, 513, 2).ok());
  EXPECT_FALSE(PartitionTable().PartsBehind(512, 512, 1).ok());
  EXPECT_FALSE(PartitionTable().PartsBehind(0, 10, 0).ok());
}

}  // namespace
}  // namespace runahead
