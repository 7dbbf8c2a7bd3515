#include "kernels/cpu/cpu_kv_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::IsEmpty;

KvLayout Layout(std::vector<KvSequence> sequences) {
  return {.page_tokens = 256, .pages = {0, 1, 2, 3}, .sequences = std::move(sequences)};
}

TEST(CpuKvTable, CutsEverySequenceEvery256Positions) {
  const auto table = *CpuKvTable::Make(
      Layout({{.length = 256, .end = 256}, {.length = 257, .end = 257}, {.length = 1, .first_page = 3, .end = 1}}));
  EXPECT_EQ(table->pieces(), 4);
  EXPECT_THAT(table->held(),
              ElementsAre(FieldsAre(0, 0, 256), FieldsAre(1, 0, 256), FieldsAre(1, 256, 257), FieldsAre(2, 0, 1)));
  EXPECT_EQ(table->first_piece(1), 1);
  EXPECT_EQ(table->first_piece(2), 3);
  EXPECT_EQ(table->first_piece(3), 4);
}

TEST(CpuKvTable, NumbersPiecesAlikeWhateverPositionsItHas) {
  const auto some = *CpuKvTable::Make(
      Layout({{.length = 700, .end = 256}, {.length = 700}, {.length = 600, .begin = 512, .end = 600}}));
  EXPECT_EQ(some->pieces(), 9);
  EXPECT_THAT(some->held(), ElementsAre(FieldsAre(0, 0, 256), FieldsAre(2, 512, 600)));
  EXPECT_EQ(some->first_piece(2), 6);
}

TEST(CpuKvTable, ALongSequenceHasLongerPieces) {
  KvLayout layout =
      Layout({{.length = 16'640, .begin = 16'384, .end = 16'640}, {.length = 257, .first_page = 1, .end = 257}});
  const auto table = *CpuKvTable::Make(std::move(layout));
  EXPECT_EQ(table->pieces(), 33 + 2);
  EXPECT_THAT(table->held(), ElementsAre(FieldsAre(0, 16'384, 16'640), FieldsAre(1, 0, 256), FieldsAre(1, 256, 257)));
  EXPECT_EQ(table->first_piece(1), 33);
}

TEST(CpuKvTable, APromptsRowHasNoPiecesThoughItStandsAlone) {
  KvLayout layout = Layout({{.length = 300, .end = 300}});
  layout.of_prompts = true;
  const auto table = *CpuKvTable::Make(std::move(layout));
  EXPECT_EQ(table->pieces(), 0);
  EXPECT_THAT(table->held(), IsEmpty());
}

TEST(CpuKvTable, EachQueryOfASequenceHasPiecesOfItsOwn) {
  KvLayout layout = Layout({{.queries = 3, .length = 258, .end = 258}, {.length = 1, .first_page = 3, .end = 1}});
  layout.by_pieces = true;
  const auto table = *CpuKvTable::Make(std::move(layout));
  EXPECT_EQ(table->pieces(), 1 + 2 + 2 + 1);
  EXPECT_THAT(table->held(), ElementsAre(FieldsAre(0, 0, 256), FieldsAre(0, 256, 258), FieldsAre(1, 0, 1)));
  EXPECT_EQ(table->first_row(1), 3);
  EXPECT_EQ(table->first_piece(1), 1);
  EXPECT_EQ(table->first_piece(2), 3);
  EXPECT_EQ(table->first_piece(3), 5);
  EXPECT_EQ(table->first_piece(4), 6);
}

TEST(CpuKvTable, QueriesOfASequenceAreCutAsTheirOwnLengthsSay) {
  KvLayout layout = Layout({{.queries = 2, .length = 16'385, .begin = 16'384, .end = 16'385}});
  layout.by_pieces = true;
  const auto table = *CpuKvTable::Make(std::move(layout));
  EXPECT_EQ(table->pieces(), 64 + 33);
  EXPECT_THAT(table->held(), ElementsAre(FieldsAre(0, 16'384, 16'385)));
}

TEST(CpuKvTable, PromptsHaveNoPieces) {
  const auto table = *CpuKvTable::Make(KvLayout::OnePage(300, 700));
  EXPECT_EQ(table->pieces(), 0);
  EXPECT_THAT(table->held(), IsEmpty());
  KvLayout beside = Layout({{.length = 5, .end = 5}, {.queries = 2, .length = 9, .first_page = 1, .end = 9}});
  EXPECT_THAT((*CpuKvTable::Make(beside))->held(), IsEmpty());
}

TEST(CpuKvTable, RefusesALayoutThatCannotBe) {
  EXPECT_EQ(CpuKvTable::Make(Layout({{.length = 700, .end = 300}})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace runahead
