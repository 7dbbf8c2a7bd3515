#include "kernels/cuda/flash_decode_plan.h"

#include <map>
#include <numeric>

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr int64_t kRowBytes = 2 * 3 * 64 * 2;

const std::byte* Address(int64_t units) {
  return reinterpret_cast<const std::byte*>(units * kFlashAlignment);
}

// A sequence whose spans lie anywhere, the first at `where` (in units of kFlashAlignment).
FlashDecodeSequence Sequence(int64_t query_row, int64_t length, const std::vector<int64_t>& tokens, int64_t where) {
  FlashDecodeSequence sequence{query_row, length, {}};
  for (const int64_t count : tokens) {
    sequence.spans.push_back({Address(where), count});
    where = where * 3 + 1'000'003;  // upwards and far apart, never at round addresses
  }
  return sequence;
}

const std::byte* RowOf(const FlashDecodeSequence& sequence, int64_t position) {
  for (const FlashSpan& span : sequence.spans) {
    if (position < span.tokens) return span.rows + position * kRowBytes;
    position -= span.tokens;
  }
  return nullptr;
}

// That the pieces of a row are its sequence, token by token, and that no page holds what none of them reads.
void ExpectPlanOf(const std::vector<FlashDecodeSequence>& sequences) {
  const FlashDecodePlan plan = PlanFlashDecode(sequences, kRowBytes);
  ASSERT_EQ(plan.rows.size(), sequences.size());
  std::vector<int> page_uses(plan.pages.size());
  int32_t piece = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const FlashDecodeRow& row = plan.rows[s];
    EXPECT_EQ(row.query_row, sequences[s].query_row);
    ASSERT_EQ(row.first_piece, piece);
    int64_t position = 0;
    for (; piece < row.first_piece + row.pieces; ++piece) {
      const FlashDecodePiece& part = plan.pieces.at(piece);
      ASSERT_EQ(part.query_row, sequences[s].query_row);
      ASSERT_GT(part.tokens, 0);
      for (int32_t token = 0; token < part.tokens; ++token, ++position) {
        const size_t page = part.first_page + token / plan.page_tokens;
        const std::byte* at = Address(plan.pages.at(page)) + token % plan.page_tokens * kRowBytes;
        ASSERT_EQ(at, RowOf(sequences[s], position)) << "sequence " << s << ", position " << position;
        if (token % plan.page_tokens == 0) ++page_uses[page];
      }
    }
    ASSERT_EQ(position, sequences[s].length) << "sequence " << s;
  }
  EXPECT_EQ(page_uses, std::vector<int>(plan.pages.size(), 1));
  ASSERT_EQ(static_cast<int64_t>(plan.pieces.size()), FlashDecodePieceRoom(piece));
  for (; piece < static_cast<int32_t>(plan.pieces.size()); ++piece) EXPECT_EQ(plan.pieces[piece].tokens, 0);
}

TEST(FlashDecodePlan, EveryTokenIsReadOnceWhereItLies) {
  ExpectPlanOf({Sequence(0, 1, {1}, 7)});
  ExpectPlanOf({Sequence(0, 256, {256}, 7)});
  ExpectPlanOf({Sequence(0, 257, {256, 256}, 7)});
  ExpectPlanOf({Sequence(3, 1000, {1024}, 7), Sequence(1, 300, {256, 100}, 11), Sequence(2, 255, {300}, 13)});
  ExpectPlanOf({Sequence(0, 700, {64, 192, 0, 512}, 7), Sequence(1, 40, {16, 16, 16}, 11)});
  ExpectPlanOf({Sequence(0, 600, {1, 255, 300, 77}, 7), Sequence(5, 515, {256, 256, 3}, 11)});
  ExpectPlanOf({Sequence(0, 20'000, {19'000, 1'000}, 7), Sequence(1, 9, {9}, 5)});
}

TEST(FlashDecodePlan, NothingPlansToNothing) {
  const FlashDecodePlan plan = PlanFlashDecode({}, kRowBytes);
  EXPECT_TRUE(plan.rows.empty());
  EXPECT_TRUE(plan.pieces.empty());
  EXPECT_TRUE(plan.pages.empty());
}

TEST(FlashDecodePlan, PagesAreAsLargeAsTheCutsAllow) {
  const auto page_tokens = [](std::vector<int64_t> tokens, int64_t length) {
    return PlanFlashDecode(std::vector{Sequence(0, 9, {9}, 5), Sequence(1, length, tokens, 7)}, kRowBytes).page_tokens;
  };
  EXPECT_EQ(page_tokens({10'000}, 10'000), 256);
  EXPECT_EQ(page_tokens({512, 256, 31}, 790), 256);
  EXPECT_EQ(page_tokens({256, 64, 256}, 500), 64);
  EXPECT_EQ(page_tokens({48, 16, 8}, 70), 16);
  EXPECT_EQ(page_tokens({3, 8}, 8), 1);
  EXPECT_EQ(page_tokens({256, 3, 8}, 259), 256) << "where the sequence ends before a cut, it does not matter";
  EXPECT_EQ(page_tokens({256, 0, 0, 9}, 259), 256);
}

TEST(FlashDecodePlan, PiecesDependOnTheLengthAlone) {
  const std::vector<FlashDecodeSequence> others = {Sequence(0, 30'000, {30'000}, 7), Sequence(1, 77, {3, 80}, 11)};
  for (const int64_t length : {1, 255, 256, 257, 5'000, 16'384, 16'385, 40'000}) {
    const auto pieces_of = [&](std::vector<FlashDecodeSequence> sequences) {
      const FlashDecodePlan plan = PlanFlashDecode(sequences, kRowBytes);
      const FlashDecodeRow& row = plan.rows.back();
      std::vector<int32_t> tokens;
      for (int32_t i = 0; i < row.pieces; ++i) tokens.push_back(plan.pieces[row.first_piece + i].tokens);
      return tokens;
    };
    std::vector<FlashDecodeSequence> batch = others;
    batch.push_back(Sequence(2, length, {5, 40'000}, 13));
    const std::vector<int32_t> alone = pieces_of({Sequence(9, length, {40'000}, 3)});
    EXPECT_EQ(pieces_of(batch), alone) << length;
    EXPECT_EQ(std::accumulate(alone.begin(), alone.end(), int64_t{0}), length);
    EXPECT_LE(alone.size(), 64u);
    for (size_t i = 0; i + 1 < alone.size(); ++i) EXPECT_EQ(alone[i], FlashDecodePieceTokens(length));
  }
}

TEST(FlashDecodePlan, PieceTokens) {
  EXPECT_EQ(FlashDecodePieceTokens(1), 256);
  EXPECT_EQ(FlashDecodePieceTokens(64 * 256), 256);
  EXPECT_EQ(FlashDecodePieceTokens(64 * 256 + 1), 512);
  EXPECT_EQ(FlashDecodePieceTokens(128 * 1024), 2048);
}

TEST(FlashDecodePlan, RoomGrowsInStepsOfAQuarterAtMost) {
  EXPECT_EQ(FlashDecodePieceRoom(0), 0);
  std::map<int64_t, int> steps;
  for (int64_t pieces = 1; pieces <= 10'000; ++pieces) {
    const int64_t room = FlashDecodePieceRoom(pieces);
    ASSERT_GE(room, pieces);
    ASSERT_LE(4 * (room - pieces), pieces);
    ASSERT_EQ(FlashDecodePieceRoom(room), room);
    ++steps[room];
  }
  EXPECT_LT(steps.size(), 60u);
}

TEST(FlashDecodePlan, TakesAlignedSpans) {
  FlashDecodeSequence sequence = Sequence(0, 300, {256, 256}, 7);
  EXPECT_TRUE(FlashDecodeTakes(sequence));
  sequence.spans[1].rows += 8;
  EXPECT_FALSE(FlashDecodeTakes(sequence));
  sequence.length = 256;
  EXPECT_TRUE(FlashDecodeTakes(sequence)) << "the second span is not read";
  sequence.spans[0].rows += 2;
  EXPECT_FALSE(FlashDecodeTakes(sequence));
}

TEST(FlashDecodePlan, WorkspaceHoldsAMeanAndALogForEachPieceAndHead) {
  EXPECT_EQ(FlashDecodeWorkspaceBytes(5, 8, 128), 5u * 8 * 129 * 4);
}

}  // namespace
}  // namespace runahead
