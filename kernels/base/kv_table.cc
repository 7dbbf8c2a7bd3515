#include "kernels/base/kv_table.h"

#include <utility>

namespace runahead {
namespace {

// A sequence longer than this many pieces of the smallest size gets larger ones instead: 64 fill a large GPU even where
// one sequence with 8 KV heads is all there is, and merging more takes longer than it gains.
constexpr int64_t kMostPieces = 64;

// How many rows behind the base a sequence's pages reach; of the last page, only what the sequence has of it.
int64_t RowsReached(const KvLayout& layout, const KvSequence& sequence) {
  const int64_t pages = layout.PagesOf(sequence);
  if (pages == 0) return 0;
  int64_t reached = 0;
  for (int64_t page = 0; page + 1 < pages; ++page) {
    reached = std::max(reached, (layout.pages[sequence.first_page + page] + int64_t{1}) * layout.page_tokens);
  }
  const int64_t held = std::max(sequence.end, sequence.dense_length) - sequence.begin;
  const int64_t last = layout.pages[sequence.first_page + pages - 1] * layout.page_tokens;
  return std::max(reached, last + held - (pages - 1) * layout.page_tokens);
}

}  // namespace

int64_t PieceTokens(int64_t length) {
  int64_t tokens = kSmallestPiece;
  while (tokens * kMostPieces < length) tokens *= 2;
  return tokens;
}

int64_t PieceCount(int64_t length) {
  const int64_t tokens = PieceTokens(length);
  return (length + tokens - 1) / tokens;
}

KvTable::KvTable(KvLayout layout, int64_t pieces) : layout_(std::move(layout)), pieces_(pieces) {
  int64_t rows = 0;
  for (const KvSequence& sequence : layout_.sequences) rows += sequence.queries;
  positions_.reserve(rows);
  own_rows_.reserve(rows);
  for (const KvSequence& sequence : layout_.sequences) {
    for (int64_t at = sequence.length - sequence.queries; at < sequence.length; ++at) {
      positions_.push_back(static_cast<int32_t>(at));
      const bool held = at >= sequence.begin && at < sequence.end;
      own_rows_.push_back(held ? layout_.RowOf(sequence, at) : -1);
    }
    base_rows_ = std::max(base_rows_, RowsReached(layout_, sequence));
  }
}

}  // namespace runahead
