#include "kernels/cuda/kv_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace runahead {
namespace {

// Sequences with one query each, whose pages lie anywhere: no two share one.
KvLayout Layout(int64_t page_tokens, const std::vector<int64_t>& lengths) {
  KvLayout layout{page_tokens, {}, {}};
  for (const int64_t length : lengths) {
    layout.sequences.push_back({1, length, static_cast<int64_t>(layout.pages.size()), 0, length, 0});
    layout.pages.resize(layout.pages.size() + (length + page_tokens - 1) / page_tokens);
  }
  std::iota(layout.pages.begin(), layout.pages.end(), 3);
  std::shuffle(layout.pages.begin(), layout.pages.end(), std::mt19937(7));
  return layout;
}

// The same sequences with the positions [begin, end) of the one at `index` alone.
KvLayout WithRange(KvLayout layout, size_t index, int64_t begin, int64_t end) {
  KvSequence& sequence = layout.sequences[index];
  sequence.first_page += begin / layout.page_tokens;
  sequence.begin = begin;
  sequence.end = end;
  return layout;
}

int64_t RowOf(const KvPlan& plan, int64_t first_page, int64_t position) {
  return plan.pages.at(first_page + position / plan.page_tokens) * plan.page_tokens + position % plan.page_tokens;
}

std::vector<int32_t> FirstsOf(const KvPlan& plan) {
  std::vector<int32_t> firsts;
  for (const PieceRun& run : plan.work) firsts.push_back(run.first);
  return firsts;
}

// That the pieces of a sequence are what the layout has of it, position by position, each in its place among those of
// the whole sequence, and that no page holds what none of them has.
void ExpectPlanOf(const KvLayout& layout) {
  const KvPlan plan = PlanKv(layout);
  ASSERT_EQ(plan.ranges.size(), layout.sequences.size());
  std::vector<int> page_uses(plan.pages.size());
  int32_t piece = 0;
  for (size_t s = 0; s < layout.sequences.size(); ++s) {
    const KvSequence& sequence = layout.sequences[s];
    const int64_t piece_tokens = PieceTokens(sequence.length);
    ASSERT_EQ(plan.ranges[s].first, piece);
    ASSERT_EQ(plan.ranges[s].count, (sequence.length + piece_tokens - 1) / piece_tokens);
    for (int64_t begin = 0; begin < sequence.length; begin += piece_tokens, ++piece) {
      const AttentionPiece& part = plan.pieces.at(piece);
      const bool has = begin >= sequence.begin && begin < sequence.end;
      ASSERT_EQ(part.tokens, has ? std::min(piece_tokens, sequence.length - begin) : 0);
      if (!has) continue;
      ASSERT_EQ(part.query_row, static_cast<int32_t>(s));
      ASSERT_EQ(part.left, sequence.length - begin);
      for (int32_t token = 0; token < part.tokens; ++token) {
        ASSERT_EQ(RowOf(plan, part.first_page, token), layout.RowOf(sequence, begin + token)) << s << ", " << begin;
        if (token % plan.page_tokens == 0) ++page_uses[part.first_page + token / plan.page_tokens];
      }
    }
  }
  EXPECT_EQ(page_uses, std::vector<int>(plan.pages.size(), 1));
  std::vector<int32_t> with_tokens;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    if (plan.pieces[i].tokens > 0) with_tokens.push_back(static_cast<int32_t>(i));
  }
  EXPECT_EQ(FirstsOf(plan), with_tokens) << "a launch attends over what is there, and nothing else";
  EXPECT_EQ(plan.most_shared, 1);
  const KvPlan again = PlanKv(layout, /*repeats=*/true);
  ASSERT_EQ(static_cast<int64_t>(again.work.size()), FlashDecodePieceRoom(static_cast<int64_t>(with_tokens.size())));
  with_tokens.resize(again.work.size(), -1);
  EXPECT_EQ(FirstsOf(again), with_tokens);
  ASSERT_EQ(static_cast<int64_t>(plan.pieces.size()), FlashDecodePieceRoom(piece));
  for (; piece < static_cast<int32_t>(plan.pieces.size()); ++piece) EXPECT_EQ(plan.pieces[piece].tokens, 0);
}

TEST(KvPlan, EveryPositionIsReadOnceWhereItLies) {
  for (const int64_t page_tokens : {1, 7, 16, 48, 256, 300, 512}) {
    SCOPED_TRACE(page_tokens);
    ExpectPlanOf(Layout(page_tokens, {1}));
    ExpectPlanOf(Layout(page_tokens, {256}));
    ExpectPlanOf(Layout(page_tokens, {257, 1000, 300, 255, 4097}));
    ExpectPlanOf(Layout(page_tokens, {9, 20'000}));
  }
}

TEST(KvPlan, ATableOfSomePositionsNumbersPiecesAsTheWhole) {
  for (const int64_t page_tokens : {1, 16, 256}) {
    const KvLayout whole = Layout(page_tokens, {300, 1'000, 20'000});
    ExpectPlanOf(WithRange(whole, 1, 0, 512));
    ExpectPlanOf(WithRange(whole, 1, 512, 1'000));
    ExpectPlanOf(WithRange(whole, 1, 256, 256));
    ExpectPlanOf(WithRange(WithRange(whole, 2, 512, 4'096), 0, 0, 0));
    EXPECT_EQ(PlanKv(WithRange(whole, 1, 512, 1'000)).pieces.size(), PlanKv(whole).pieces.size());
  }
}

TEST(KvPlan, NothingPlansToNothing) {
  const KvPlan plan = PlanKv({256, {}, {}});
  EXPECT_TRUE(plan.items.empty());
  EXPECT_TRUE(plan.ranges.empty());
  EXPECT_TRUE(plan.pieces.empty());
  EXPECT_TRUE(plan.pages.empty());
}

TEST(KvPlan, PagesAreAsLargeAsTheLayoutAllows) {
  const auto page_tokens = [](int64_t of_layout, int64_t length) {
    return PlanKv(Layout(of_layout, {length})).page_tokens;
  };
  EXPECT_EQ(page_tokens(256, 1000), 256);
  EXPECT_EQ(page_tokens(4096, 10'000), 256);
  EXPECT_EQ(page_tokens(48, 700), 16);
  EXPECT_EQ(page_tokens(3, 8), 1);
  EXPECT_EQ(PlanKv(KvLayout::OnePage(1, 77)).page_tokens, 256) << "one page from the base on ends anywhere";
  EXPECT_EQ(PlanKv({77, {4}, {{1, 70, 0, 0, 70, 0}}}).page_tokens, 4);
  EXPECT_EQ(PlanKv(WithRange(Layout(48, {700}), 0, 0, 0)).page_tokens, 256) << "pages that are not used do not count";
}

TEST(KvPlan, PromptsHaveNoPieces) {
  const KvPlan plan = PlanKv({16, {4, 5, 6, 9, 2}, {{7, 40, 0, 0, 40, 0}, {1, 9, 3, 0, 9, 0}, {2, 3, 4, 0, 3, 0}}});
  EXPECT_TRUE(plan.ranges.empty());
  EXPECT_TRUE(plan.pieces.empty());
  EXPECT_EQ(plan.most_queries, 7);
  ASSERT_EQ(plan.items.size(), 3u);
  const int64_t rows[] = {0, 7, 8}, lengths[] = {40, 9, 3}, pages[] = {4, 9, 2};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.items[i].query_row, rows[i]);
    EXPECT_EQ(plan.items[i].length, lengths[i]);
    EXPECT_EQ(RowOf(plan, plan.items[i].first_page, 1), pages[i] * 16 + 1);
  }
}

TEST(KvPlan, APromptsRowHasNoPiecesThoughItStandsAlone) {
  KvLayout layout = KvLayout::OnePage(1, 300);
  layout.of_prompts = true;
  const KvPlan plan = PlanKv(layout);
  EXPECT_TRUE(plan.ranges.empty());
  EXPECT_TRUE(plan.pieces.empty());
  ASSERT_EQ(plan.items.size(), 1u);
  EXPECT_EQ(plan.most_queries, 1);
}

// Each query has the pieces that it would have alone; those over the same rows of KV are in one run.
TEST(KvPlan, QueriesOfASequenceShareRunsOfPieces) {
  for (const auto& [queries, length] : {std::pair<int64_t, int64_t>{16, 264}, {3, 3}, {5, 1'024}, {16, 16'390}}) {
    SCOPED_TRACE(testing::Message() << queries << " of " << length);
    KvLayout layout = Layout(256, {300, length, 77});
    layout.sequences[1].queries = queries;
    layout.by_pieces = true;
    const KvPlan plan = PlanKv(layout);
    ASSERT_EQ(static_cast<int64_t>(plan.ranges.size()), queries + 2);
    std::vector<int> uses(plan.pieces.size());
    std::map<std::pair<int32_t, int32_t>, int> runs;  // by first page and tokens
    for (const PieceRun& run : plan.work) {
      const AttentionPiece& first = plan.pieces.at(run.first);
      ++runs[{first.first_page, first.tokens}];
      for (int32_t i = 0; i < run.count; ++i) {
        const AttentionPiece& piece = plan.pieces.at(run.first + i * run.step);
        ++uses[run.first + i * run.step];
        EXPECT_EQ(piece.first_page, first.first_page);
        EXPECT_EQ(piece.tokens, first.tokens);
        EXPECT_EQ(piece.left, first.left + i);
        EXPECT_EQ(piece.query_row, first.query_row + i);
      }
    }
    for (size_t p = 0; p < uses.size(); ++p) EXPECT_EQ(uses[p], plan.pieces[p].tokens > 0) << p;
    // Where a query has a piece more than the one before it, numbers no more rise by equal steps.
    for (const auto& [rows, times] : runs) EXPECT_LE(times, 2);
    EXPECT_EQ(plan.most_shared > 1, length > 256);
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t own = length - queries + 1 + i;
      const KvPlan alone = PlanKv(Layout(256, {own}));
      const PieceRange range = plan.ranges[1 + i];
      ASSERT_EQ(range.count, alone.ranges[0].count);
      for (int32_t p = 0; p < range.count; ++p) {
        EXPECT_EQ(plan.pieces[range.first + p].tokens, alone.pieces[p].tokens);
        EXPECT_EQ(plan.pieces[range.first + p].left, alone.pieces[p].left);
      }
    }
  }
}

TEST(KvPlan, KnowsSequencesThatAreConsecutiveRows) {
  const auto first_row = [](std::vector<int32_t> pages, int64_t length, int64_t dense_length = 0) {
    return PlanKv({16, std::move(pages), {{2, length, 0, 0, length, dense_length}}}).first_rows.at(0);
  };
  EXPECT_EQ(first_row({4}, 9), 64);
  EXPECT_EQ(first_row({4, 5, 6}, 48), 64);
  EXPECT_EQ(first_row({4, 6, 5}, 48), -1);
  EXPECT_EQ(first_row({4, 6}, 16), 64) << "the second page is not used";
  EXPECT_EQ(first_row({4, 6}, 16, 17), -1) << "the dense rectangle uses it";
  EXPECT_EQ(PlanKv(KvLayout::OnePage(30, 33, 50)).first_rows.at(0), 0);
}

TEST(KvPlan, PiecesDependOnTheLengthAlone) {
  for (const int64_t length : {1, 255, 256, 257, 5'000, 16'384, 16'385, 40'000}) {
    const auto pieces_of_last = [&](const KvLayout& layout) {
      const KvPlan plan = PlanKv(layout);
      const PieceRange& range = plan.ranges.back();
      std::vector<int32_t> tokens;
      for (int32_t i = 0; i < range.count; ++i) tokens.push_back(plan.pieces[range.first + i].tokens);
      return tokens;
    };
    const std::vector<int32_t> alone = pieces_of_last(Layout(256, {length}));
    EXPECT_EQ(pieces_of_last(Layout(16, {30'000, 77, length})), alone) << length;
    EXPECT_EQ(std::accumulate(alone.begin(), alone.end(), int64_t{0}), length);
    EXPECT_LE(alone.size(), 64u);
    for (size_t i = 0; i + 1 < alone.size(); ++i) EXPECT_EQ(alone[i], PieceTokens(length));
  }
}

TEST(KvPlan, RoomGrowsInStepsOfAQuarterAtMost) {
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

}  // namespace
}  // namespace runahead
