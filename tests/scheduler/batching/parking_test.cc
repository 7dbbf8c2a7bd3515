#include "scheduler/batching/parking.h"

#include <optional>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

MemoryHolder Normal(SequenceNumber number, int64_t length = 100, int64_t guaranteed = 0) {
  return {{.parked_first = false, .number = number}, length, guaranteed};
}
MemoryHolder Low(SequenceNumber number, int64_t length = 100, int64_t guaranteed = 0) {
  return {{.parked_first = true, .number = number}, length, guaranteed};
}
// 0: nobody.
SequenceNumber Parked(const std::vector<MemoryHolder>& holders) {
  const std::optional<MemoryTurn> turn = WhomToPark(holders);
  return turn.has_value() ? turn->number : 0;
}

TEST(WhomToPark, IsTheYoungestOfTheLowestPriority) {
  EXPECT_EQ(Parked({Normal(3), Normal(9), Normal(5)}), 9u);
  EXPECT_EQ(Parked({Normal(3), Low(2), Normal(9), Low(1)}), 2u);
  EXPECT_EQ(Parked({Normal(3), Low(1), Normal(9)}), 1u) << "however old";
}

TEST(WhomToPark, IsNeverTheOldestOfTheHighestPriority) {
  EXPECT_EQ(Parked({Normal(3)}), 0u);
  EXPECT_EQ(Parked({Low(4), Low(7)}), 7u) << "of low ones alone the oldest stays";
  EXPECT_EQ(Parked({Low(4)}), 0u);
  EXPECT_EQ(Parked({Normal(8), Low(4)}), 4u);
  EXPECT_EQ(Parked({}), 0u);
}

TEST(WhomToPark, IsNobodyWhoIsShorterThanWasGuaranteed) {
  EXPECT_EQ(Parked({Normal(1), Normal(2), Normal(3, 499, 500)}), 2u);
  EXPECT_EQ(Parked({Normal(1), Normal(2), Normal(3, 500, 500)}), 3u);
  EXPECT_EQ(Parked({Normal(1), Normal(2, 10, 11), Low(3, 499, 500)}), 0u) << "who wants to grow waits";
}

TEST(MemoryTurns, AreByPriorityAndThenByAge) {
  const std::set<MemoryTurn> turns = {{true, 1}, {false, 7}, {true, 3}, {false, 2}};
  EXPECT_THAT(turns, ElementsAre(MemoryTurn{false, 2}, MemoryTurn{false, 7}, MemoryTurn{true, 1}, MemoryTurn{true, 3}));
}

}  // namespace
}  // namespace runahead
