#include "scheduler/partition/partition_moves.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(PartitionMoves, BoundsAndPartsSayTheSame) {
  EXPECT_THAT(BoundsOf({4, 3, 2}), ElementsAre(0, 4, 7, 9));
  EXPECT_THAT(PartsOf({0, 4, 7, 9}), ElementsAre(4, 3, 2));
  EXPECT_TRUE(IsPartition({0, 1, 2}));
  EXPECT_FALSE(IsPartition({0, 2, 2}));
  EXPECT_FALSE(IsPartition({0, 3, 2}));
}

// The paper's search (arXiv 2405.05329): five values for each of p - 1 boundaries.
TEST(PartitionMoves, TheGridHasFiveValuesABoundary) {
  const std::vector<PartBounds> grid = GridAround({0, 32, 64, 96}, 8);
  EXPECT_THAT(grid, SizeIs(25));
  EXPECT_EQ(std::set<PartBounds>(grid.begin(), grid.end()).size(), 25u);
  EXPECT_THAT(grid, Contains(ElementsAre(0, 16, 80, 96)));
  EXPECT_THAT(grid, Contains(ElementsAre(0, 32, 64, 96)));
}

TEST(PartitionMoves, MovesTakeOneBoundaryOrTwoAndLeaveOrStretchTheOthers) {
  const std::vector<PartBounds> moves = MovesAround({0, 40, 80, 120, 160}, 4);
  EXPECT_THAT(moves, Contains(ElementsAre(0, 40, 88, 120, 160)));
  EXPECT_THAT(moves, Contains(ElementsAre(0, 44, 88, 124, 160)));
  EXPECT_THAT(moves, Contains(ElementsAre(0, 36, 80, 128, 160)));
  EXPECT_THAT(moves, Contains(ElementsAre(0, 36, 82, 128, 160)));
  EXPECT_THAT(moves, SizeIs(1 + 2 * (3 * 4 + 3 * 16)));
}

TEST(PartitionMoves, NarrowStartsUseTheLastWorkers) {
  EXPECT_THAT(NarrowStarts(21, 3), ElementsAre(ElementsAre(0, 1, 2, 21), ElementsAre(0, 1, 11, 21)));
}

TEST(PartitionMoves, ScatteredStartsArePartitionsAndAlwaysTheSame) {
  const std::vector<PartBounds> starts = ScatteredStarts(50, 4, 20);
  EXPECT_THAT(starts, SizeIs(20));
  EXPECT_EQ(starts, ScatteredStarts(50, 4, 20));
  EXPECT_GT(std::set<PartBounds>(starts.begin(), starts.end()).size(), 15u);
  for (const PartBounds& start : starts) {
    EXPECT_TRUE(IsPartition(start));
    EXPECT_EQ(start.back(), 50);
  }
  EXPECT_THAT(ScatteredStarts(4, 4, 3), Each(ElementsAre(0, 1, 2, 3, 4)));
}

TEST(PartitionMoves, Distances) {
  EXPECT_EQ(Distance({0, 5, 9, 12}, {0, 7, 8, 12}), 3);
  EXPECT_EQ(FarthestMove({0, 5, 9, 12}, {0, 7, 8, 12}), 2);
}

}  // namespace
}  // namespace runahead
