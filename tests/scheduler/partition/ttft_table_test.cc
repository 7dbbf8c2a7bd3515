#include "scheduler/partition/ttft_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TtftTable, InterpolatesBetweenLengths) {
  const TtftTable table = *TtftTable::Create({{1, 1000, 1.0}, {1, 3000, 3.0}, {2, 1000, 0.75}});
  EXPECT_DOUBLE_EQ(table.Seconds(1000, 1), 1.0);
  EXPECT_DOUBLE_EQ(table.Seconds(2000, 1), 2.0);
  EXPECT_DOUBLE_EQ(table.Seconds(3000, 1), 3.0);
  EXPECT_THAT(table.widths(), ElementsAre(1, 2));
}

// 0.1 n + 0.2 n^2, n in thousands: lengths far apart tell it. A straight line would have 11.8 s at 6,000.
TEST(TtftTable, BetweenTwoLengthsAttentionGrows) {
  const auto seconds = [](double n) { return 0.1 * n + 0.2 * n * n; };
  const TtftTable table = *TtftTable::Create({{1, 1000, seconds(1)}, {1, 4000, seconds(4)}, {1, 16000, seconds(16)}});
  EXPECT_NEAR(table.Seconds(6000, 1), seconds(6), 1e-9);
  EXPECT_NEAR(table.Seconds(10000, 1), seconds(10), 1e-9);
  EXPECT_NEAR(table.Seconds(2000, 1), seconds(2), 1e-9);
}

TEST(TtftTable, WhereALongerPromptTookLessItFallsOnAStraightLine) {
  const TtftTable table = *TtftTable::Create({{1, 1000, 2.0}, {1, 2000, 1.0}, {1, 4000, 8.0}});
  EXPECT_DOUBLE_EQ(table.Seconds(1500, 1), 1.5);
}

TEST(TtftTable, RisesAllTheWayWhereItsTimesDo) {
  const TtftTable table = *TtftTable::Create({{1, 64, 0.02}, {1, 256, 0.02}, {1, 1024, 0.05}, {1, 4096, 0.4}});
  for (int64_t tokens = 2; tokens <= 8192; ++tokens) {
    ASSERT_GE(table.Seconds(tokens, 1), table.Seconds(tokens - 1, 1)) << tokens;
    ASSERT_GE(table.SecondsOfTokens(tokens, 1), table.SecondsOfTokens(tokens - 1, 1)) << tokens;
  }
}

// By the two shortest a pass begins with 0.5 s.
TEST(TtftTable, TokensTakeWhatIsBeyondTheStart) {
  const TtftTable table = *TtftTable::Create({{1, 1000, 1.5}, {1, 3000, 3.5}, {1, 5000, 6.5}, {2, 1000, 0.5}});
  EXPECT_DOUBLE_EQ(table.SecondsOfTokens(0, 1), 0);
  EXPECT_DOUBLE_EQ(table.SecondsOfTokens(500, 1), 0.5);
  EXPECT_DOUBLE_EQ(table.SecondsOfTokens(1000, 1), 1);
  EXPECT_DOUBLE_EQ(table.SecondsOfTokens(5000, 1), 6);
  EXPECT_DOUBLE_EQ(table.SecondsOfTokens(500, 2), 0.25) << "one length says nothing of a start";
  // Nor do two where attention is nearly all.
  EXPECT_DOUBLE_EQ(TtftTable::Create({{1, 1000, 1}, {1, 2000, 3}})->SecondsOfTokens(500, 1), 0.5);
}

TEST(TtftTable, ShortPromptsTakeWhatTheShortestTook) {
  const TtftTable table = *TtftTable::Create({{1, 1000, 1.0}, {1, 3000, 4.0}});
  EXPECT_DOUBLE_EQ(table.Seconds(1, 1), 1.0);
}

// 0.1 n + 0.2 n^2, n in thousands: beyond the table it is still that.
TEST(TtftTable, QuadraticTimesContinueBeyondTheLongest) {
  const auto seconds = [](double n) { return 0.1 * n + 0.2 * n * n; };
  const TtftTable table = *TtftTable::Create({{1, 2000, seconds(2)}, {1, 4000, seconds(4)}});
  EXPECT_NEAR(table.Seconds(10'000, 1), seconds(10), 1e-9);
  // One length alone says nothing of growth.
  EXPECT_DOUBLE_EQ(TtftTable::Create({{1, 1000, 2.0}})->Seconds(3000, 1), 6.0);
}

TEST(TtftTable, WithoutASingleWorkerThereIsNothingToCompareWith) {
  EXPECT_TRUE(TtftTable().empty());
  EXPECT_TRUE(TtftTable::Create({{2, 1000, 1.0}})->empty());
  EXPECT_FALSE(TtftTable::Create({{1, 1000, 1.0}})->empty());
}

TEST(TtftTable, RefusesWhatIsNoTime) {
  const auto refused = [](std::vector<TtftEntry> entries) {
    return std::string(TtftTable::Create(entries).status().message());
  };
  EXPECT_THAT(refused({{0, 10, 1}}), HasSubstr("entries[0]: width 0"));
  EXPECT_THAT(refused({{1, 10, 1}, {1, 0, 1}}), HasSubstr("entries[1]: tokens 0"));
  EXPECT_THAT(refused({{1, 10, 0}}), HasSubstr("seconds 0"));
  EXPECT_THAT(refused({{1, 10, std::numeric_limits<double>::quiet_NaN()}}), HasSubstr("no time"));
  EXPECT_THAT(refused({{1, 10, 1}, {1, 10, 2}}), HasSubstr("a second one for width 1 and 10 tokens"));
}

}  // namespace
}  // namespace runahead
