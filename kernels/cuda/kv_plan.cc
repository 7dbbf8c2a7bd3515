#include "kernels/cuda/kv_plan.h"

#include <algorithm>
#include <bit>

namespace runahead {
namespace {

// Pages of the layout that hold what the sequence has; a dense rectangle is not for the kernels that read pages.
int64_t UsedPages(const KvLayout& layout, const KvSequence& sequence) {
  return (sequence.end - sequence.begin + layout.page_tokens - 1) / layout.page_tokens;
}

// The largest page whose multiples, behind the base, all that is used of the layout's pages begins at. A sequence in
// one page does not care how long that is.
int64_t PageTokens(const KvLayout& layout) {
  auto starts = static_cast<uint64_t>(kSmallestPiece);
  for (const KvSequence& sequence : layout.sequences) {
    const int64_t pages = UsedPages(layout, sequence);
    if (pages > 1) starts |= static_cast<uint64_t>(layout.page_tokens);
    if (pages == 1) starts |= static_cast<uint64_t>(layout.pages[sequence.first_page] * layout.page_tokens);
  }
  return int64_t{1} << std::countr_zero(starts);
}

// -1 where its pages do not follow each other. The dense rectangle counts.
int64_t FirstRow(const KvLayout& layout, const KvSequence& sequence) {
  const int64_t tokens = std::max(sequence.end, sequence.dense_length) - sequence.begin;
  if (tokens == 0) return -1;
  const int32_t* const pages = &layout.pages[sequence.first_page];
  for (int64_t i = 1; i * layout.page_tokens < tokens; ++i) {
    if (pages[i] != pages[0] + i) return -1;
  }
  return pages[0] * layout.page_tokens;
}

void AddPages(const KvLayout& layout, const KvSequence& sequence, KvPlan& plan) {
  const int32_t* const pages = layout.pages.data() + sequence.first_page;
  const int64_t tokens = sequence.end - sequence.begin;
  for (int64_t i = 0; i * layout.page_tokens < tokens; ++i) {
    const int64_t row = pages[i] * layout.page_tokens,
                  count = std::min(layout.page_tokens, tokens - i * layout.page_tokens);
    for (int64_t at = 0; at < count; at += plan.page_tokens) plan.pages.push_back((row + at) / plan.page_tokens);
  }
}

// The piece of a query that sees `length` positions which begins at `token`; without tokens where the layout lacks it.
AttentionPiece PieceOf(const KvSequence& sequence, int64_t length, int64_t token, int64_t query_row, int64_t first_page,
                       const KvPlan& plan) {
  if (token < sequence.begin || token >= sequence.end) return {};
  return {.first_page = static_cast<int32_t>(first_page + (token - sequence.begin) / plan.page_tokens),
          .tokens = static_cast<int32_t>(std::min(PieceTokens(length), length - token)),
          .left = static_cast<int32_t>(length - token),
          .query_row = static_cast<int32_t>(query_row)};
}

// Pieces that the layout does not have keep their numbers. One that the query before sees as a whole, too, joins its
// run, as long as the numbers of the run rise by equal steps.
void AddPieces(const KvSequence& sequence, int64_t query_row, int64_t first_page, KvPlan& plan) {
  std::vector<size_t> runs, runs_before;  // of the query's pieces, and of those of the query before, in plan.work
  constexpr size_t kNone = static_cast<size_t>(-1);
  for (int64_t i = 0; i < sequence.queries; ++i) {
    const int64_t length = sequence.length - sequence.queries + 1 + i;
    const auto first = static_cast<int32_t>(plan.pieces.size()), count = static_cast<int32_t>(PieceCount(length));
    const int32_t step = i == 0 ? 0 : first - plan.ranges.back().first;
    runs.assign(static_cast<size_t>(count), kNone);
    for (int32_t p = 0; p < count; ++p) {
      const AttentionPiece piece = PieceOf(sequence, length, p * PieceTokens(length), query_row + i, first_page, plan);
      plan.pieces.push_back(piece);
      if (piece.tokens == 0) continue;
      const auto at = static_cast<size_t>(p);
      if (at < runs_before.size() && runs_before[at] != kNone) {
        const AttentionPiece& before = plan.pieces[first + p - step];
        PieceRun& run = plan.work[runs_before[at]];
        if (before.first_page == piece.first_page && before.tokens == piece.tokens &&
            (run.count == 1 || run.step == step)) {
          run.step = step;
          plan.most_shared = std::max<int64_t>(plan.most_shared, ++run.count);
          runs[at] = runs_before[at];
          continue;
        }
      }
      runs[at] = plan.work.size();
      plan.work.push_back({.first = first + p, .count = 1, .step = 0});
    }
    plan.ranges.push_back({first, count});
    runs_before.swap(runs);
  }
}

}  // namespace

int64_t FlashDecodePieceRoom(int64_t pieces) {
  if (pieces <= 0) return 0;
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(pieces))) / 4);
  return (pieces + step - 1) / step * step;
}

KvPlan PlanKv(const KvLayout& layout, bool repeats) {
  KvPlan plan;
  plan.page_tokens = static_cast<int32_t>(PageTokens(layout));
  const bool has_pieces = layout.has_pieces();
  int64_t query_row = 0;
  for (const KvSequence& sequence : layout.sequences) {
    const auto first_page = static_cast<int64_t>(plan.pages.size());
    AddPages(layout, sequence, plan);
    if (has_pieces) AddPieces(sequence, query_row, first_page, plan);
    plan.items.push_back({query_row, sequence.queries, sequence.length, first_page});
    plan.first_rows.push_back(FirstRow(layout, sequence));
    plan.most_queries = std::max(plan.most_queries, sequence.queries);
    query_row += sequence.queries;
  }
  if (repeats) plan.work.resize(static_cast<size_t>(FlashDecodePieceRoom(static_cast<int64_t>(plan.work.size()))));
  plan.pieces.resize(static_cast<size_t>(FlashDecodePieceRoom(static_cast<int64_t>(plan.pieces.size()))));
  return plan;
}

}  // namespace runahead
