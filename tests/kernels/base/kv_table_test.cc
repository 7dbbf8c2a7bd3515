#include "kernels/base/kv_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace runahead {
namespace {

using testing::ElementsAre;

struct PlainTable : KvTable {
  explicit PlainTable(KvLayout layout) : KvTable(std::move(layout), 0) {}
};

TEST(KvTable, PiecesAre256PositionsAndOfLongSequencesMore) {
  EXPECT_EQ(PieceTokens(1), 256);
  EXPECT_EQ(PieceTokens(64 * 256), 256);
  EXPECT_EQ(PieceTokens(64 * 256 + 1), 512);
  EXPECT_EQ(PieceTokens(128 * 1024), 2048);
}

TEST(KvTable, QueriesAreTheLastPositionsOfTheirSequences) {
  const PlainTable table({.page_tokens = 4,
                          .pages = {9, 2, 5},
                          .sequences = {{.queries = 1, .length = 3, .first_page = 2, .end = 3},
                                        {.queries = 3, .length = 6, .first_page = 0, .end = 6}}});
  EXPECT_EQ(table.rows(), 4);
  EXPECT_THAT(table.positions(), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(table.own_rows(), ElementsAre(22, 39, 8, 9));
  EXPECT_EQ(table.base_rows(), 40);
}

TEST(KvTable, ARangeWithoutTheLastPositionHasNoRowOfItsOwn) {
  const PlainTable table({.page_tokens = 256,
                          .pages = {1, 0},
                          .sequences = {{.length = 600, .first_page = 0, .end = 256},
                                        {.length = 600, .first_page = 1, .begin = 512, .end = 600},
                                        {.length = 600, .first_page = 7, .begin = 256, .end = 256}}});
  EXPECT_THAT(table.own_rows(), ElementsAre(-1, 87, -1));
  EXPECT_EQ(table.base_rows(), 512);
}

TEST(KvTable, TheBaseReachesAsFarAsWhatIsHeldOfTheLastPage) {
  const auto reached = [](KvLayout layout) { return PlainTable(std::move(layout)).base_rows(); };
  EXPECT_EQ(reached(KvLayout::OnePage(2, 5)), 5);
  EXPECT_EQ(reached(KvLayout::OnePage(2, 5, 7)), 7) << "what is masked is read, too";
  EXPECT_EQ(reached({.page_tokens = 8, .pages = {3, 1}, .sequences = {{.queries = 1, .length = 9, .end = 9}}}), 32);
  EXPECT_EQ(reached({.page_tokens = 8, .pages = {0, 1}, .sequences = {{.queries = 1, .length = 9, .end = 9}}}), 9);
  EXPECT_EQ(reached({.page_tokens = 8, .pages = {}, .sequences = {}}), 0);
}

}  // namespace
}  // namespace runahead
