#include "scheduler/partition/partition_table.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::AnyOf;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two entries whose mean is the paper's interpolated entry for 10k on 4 GPUs.
PartitionTable PaperTable() {
  return PartitionTable::Create({{4, 12288, {0.360, 0.260, 0.205, 0.175}}, {4, 8192, {0.340, 0.250, 0.215, 0.195}}})
      .value();
}

TEST(PartitionTable, InterpolatesThePapersEntryInFractions) {
  const auto [fractions, source] = PaperTable().Fractions(10240, 4);
  EXPECT_EQ(source, PartitionSource::kInterpolated);
  EXPECT_THAT(fractions, ElementsAre(DoubleNear(0.350, 1e-12), DoubleNear(0.255, 1e-12), DoubleNear(0.210, 1e-12),
                                     DoubleNear(0.185, 1e-12)));
  // 3584, 2611.2, 2150.4, 1894.4: the one token left goes to the first of the largest remainders.
  EXPECT_THAT(PaperTable().Lookup(10240, 4)->parts, ElementsAre(3584, 2611, 2151, 1894));
}

TEST(PartitionTable, WeighsByTheDistanceToBothLengths) {
  const auto [fractions, source] = PaperTable().Fractions(9216, 4);
  EXPECT_EQ(source, PartitionSource::kInterpolated);
  EXPECT_NEAR(fractions[0], 0.345, 1e-12);
  EXPECT_NEAR(fractions[3], 0.190, 1e-12);
}

TEST(PartitionTable, TakesAnEntryAsItIs) {
  const Partition partition = PaperTable().Lookup(8192, 4).value();
  EXPECT_EQ(partition.source, PartitionSource::kSearched);
  EXPECT_THAT(partition.parts, ElementsAre(2785, 2048, 1761, 1598));  // 2785.28, 2048, 1761.28, 1597.44
}

TEST(PartitionTable, FollowsTheTrendOfThreeLengthsBeyondBothEnds) {
  const PartitionTable table =
      PartitionTable::Create({{2, 1000, {.58, .42}}, {2, 2000, {.60, .40}}, {2, 3000, {.62, .38}}}).value();
  EXPECT_EQ(table.Lookup(500, 2)->source, PartitionSource::kExtrapolated);
  EXPECT_THAT(table.Lookup(500, 2)->parts, ElementsAre(285, 215));
  EXPECT_EQ(table.Lookup(1, 1)->source, PartitionSource::kEven);
  // In 1 / length it is twice as far from 3000 to infinity as from 2000 to 3000, which is 0.02.
  const Partition beyond = table.Lookup(3000000, 2).value();
  EXPECT_EQ(beyond.source, PartitionSource::kExtrapolated);
  EXPECT_THAT(beyond.parts, ElementsAre(1979880, 1020120));
}

TEST(PartitionTable, EveryLengthBeyondItsEndsAddsUp) {
  const PartitionTable table =
      PartitionTable::Create(
          {{3, 1000, {.4, .35, .25}}, {3, 2000, {.45, .33, .22}}, {3, 3000, {.7, .2, .1}}, {3, 4000, {.9, .06, .04}}})
          .value();
  for (const int64_t tokens : {3, 4, 7, 500, 999, 4001, 5000, 100000, 1 << 30}) {
    const std::vector<int64_t> parts = table.Lookup(tokens, 3)->parts;
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), tokens);
    for (const int64_t part : parts) EXPECT_GE(part, 1) << tokens;
  }
}

TEST(PartitionTable, RoundsToBlocksOnlyWhatNoSearchFound) {
  const PartitionTable table =
      PartitionTable::Create({{2, 8001, {.6, .4}}, {2, 16001, {.6, .4}}}, /*block=*/64).value();
  EXPECT_THAT(table.Lookup(8001, 2)->parts, ElementsAre(4801, 3200));
  EXPECT_THAT(table.Lookup(10001, 2)->parts, ElementsAre(94 * 64, 3985));
  EXPECT_THAT(PartitionTable::Create({}, 0).status().message(), HasSubstr("block: 0 is not at least 1"));
}

TEST(PartitionTable, ClampsBeyondBothEndsOfTwoLengths) {
  const PartitionTable table = PaperTable();
  EXPECT_EQ(table.Lookup(100, 4)->source, PartitionSource::kClamped);
  EXPECT_THAT(table.Lookup(100, 4)->parts, ElementsAre(34, 25, 22, 19));  // 21.5 and 19.5: the earlier part is longer
  EXPECT_EQ(table.Lookup(100000, 4)->source, PartitionSource::kClamped);
  EXPECT_THAT(table.Lookup(100000, 4)->parts, ElementsAre(36000, 26000, 20500, 17500));
}

TEST(PartitionTable, SplitsEvenlyWhereItHasNothingForTheWidth) {
  const Partition partition = PaperTable().Lookup(11, 3).value();
  EXPECT_EQ(partition.source, PartitionSource::kEven);
  EXPECT_THAT(partition.parts, ElementsAre(4, 4, 3));
  EXPECT_THAT(PartitionTable().Lookup(11, 4)->parts, ElementsAre(3, 3, 3, 2));  // the paper's TSP example
}

TEST(PartitionTable, RefusesMoreWorkersThanTokens) {
  EXPECT_THAT(PartitionTable().Lookup(3, 4).status().message(), HasSubstr("the prompt has 3"));
  EXPECT_EQ(PartitionTable().Lookup(3, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EvenParts(0, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PartitionTable, EveryLookupAddsUpAndLeavesNobodyWithoutAToken) {
  const PartitionTable table = PartitionTable::Create({{3, 10, {0.98, 0.01, 0.01}}, {3, 997, {0.6, 0.3, 0.1}}}).value();
  for (int64_t tokens = 3; tokens < 1100; ++tokens) {
    const std::vector<int64_t> parts = table.Lookup(tokens, 3)->parts;
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), tokens);
    for (int64_t part : parts) EXPECT_GE(part, 1) << tokens;
  }
}

TEST(RoundParts, GivesTheHeadsTokensToPartsThatWouldBeEmpty) {
  EXPECT_THAT(RoundParts(5, {0.999, 0.0005, 0.0005}), ElementsAre(3, 1, 1));
  EXPECT_THAT(RoundParts(3, {0.001, 0.001, 0.998}), ElementsAre(1, 1, 1));
}

TEST(RoundParts, SurvivesFractionsThatRoundAboveOne) {
  EXPECT_THAT(RoundParts(1000, {0.7, 0.3000000001}), ElementsAre(700, 300));
}

TEST(RoundParts, MovesBoundariesToBlocksWhereAllPartsAreLong) {
  EXPECT_THAT(RoundParts(4000, {.55, .26, .19}, 16), ElementsAre(138 * 16, 65 * 16, 752));  // at 137.5 and 202.5 blocks
  EXPECT_THAT(RoundParts(4096, {.5, .5}, 128), ElementsAre(2048, 2048));  // exactly kBlocksOfLongPart each
  EXPECT_THAT(RoundParts(4095, {.5, .5}, 128), ElementsAre(2048, 2047));  // shorter: by tokens
  EXPECT_THAT(RoundParts(4225, {.5, .5}, 128), ElementsAre(2176, 2049));  // at 16.504 blocks
}

TEST(RoundParts, ByBlocksAddsUpAndTakesNoMoreBlocksThanWithout) {
  const std::vector<double> fractions = {.31, .27, .22, .2};
  for (int64_t tokens = 5120; tokens < 6200; ++tokens) {
    const std::vector<int64_t> parts = RoundParts(tokens, fractions, 64);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), tokens);
    for (size_t i = 0; i < parts.size(); ++i) {
      const double exact = fractions[i] * static_cast<double>(tokens) / 64;
      if (i + 1 == parts.size()) {
        EXPECT_NEAR(static_cast<double>(parts[i]) / 64, exact, .5 + 1e-9) << tokens;
      } else {
        EXPECT_EQ(parts[i] % 64, 0) << tokens;
        EXPECT_THAT(parts[i] / 64, AnyOf(std::floor(exact), std::ceil(exact))) << tokens;
      }
    }
  }
}

struct BadEntry {
  PartitionEntry entry;
  const char* message;
};

class PartitionTableRefuses : public ::testing::TestWithParam<BadEntry> {};

TEST_P(PartitionTableRefuses, NamingEntryAndCause) {
  const absl::Status status = PartitionTable::Create({{1, 10, {1.0}}, GetParam().entry}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("entries[1]"));
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Entries, PartitionTableRefuses,
                         ::testing::Values(BadEntry{{0, 10, {}}, "width: 0 is not at least 1"},
                                           BadEntry{{3, 2, {0.4, 0.3, 0.3}}, "need at least as many tokens"},
                                           BadEntry{{2, 10, {1.0}}, "1 given, width 2 needs as many"},
                                           BadEntry{{2, 10, {1.0, 0.0}}, "0 is not above 0"},
                                           BadEntry{{2, 10, {std::numeric_limits<double>::quiet_NaN(), 1.0}},
                                                    "is not above 0"},
                                           BadEntry{{2, 10, {0.5, 0.4}}, "add up to 0.9"},
                                           BadEntry{{1, 10, {1.0}}, "a second entry for width 1 and tokens 10"}));

TEST(PartitionTable, KnowsTheTimesOfItsEntries) {
  const PartitionTable table =
      *PartitionTable::Create({{1, 1000, {1}, 2.0}, {2, 1000, {0.5, 0.5}, 1.5}, {2, 2000, {0.5, 0.5}}});
  EXPECT_EQ(table.times().Seconds(1000, 1), 2.0);
  EXPECT_EQ(table.times().Seconds(1000, 2), 1.5);
  EXPECT_TRUE(PartitionTable::Create({{2, 2000, {0.5, 0.5}, 1.0}})->times().empty());
  EXPECT_FALSE(PartitionTable::Create({{1, 1000, {1}, -1.0}}).ok());
}

}  // namespace
}  // namespace runahead
