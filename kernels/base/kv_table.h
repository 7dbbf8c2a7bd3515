// Where the KV of a step's rows lies, and at which positions they are: the same in every layer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace runahead {

inline constexpr int64_t kSmallestPiece = 256;

// How many positions a piece of a sequence has (Device::AttendPieces), on every device: a function of its length and of
// nothing else, for where KV is cut decides how sums are rounded, and a sequence must come out the same in any batch,
// window and tier. Cuts are at multiples of it, from position 0 on, so only the last piece has less.
int64_t PieceTokens(int64_t length);
// How many pieces it has.
int64_t PieceCount(int64_t length);

// The first position that a query at `position` sees where attention has this window (AttentionShape): 0, no window,
// hides none. It never falls as positions rise.
inline int64_t FirstSeen(int64_t window, int64_t position) {
  return window == 0 ? 0 : std::max<int64_t>(0, position + 1 - window);
}

// One sequence of a step: its query rows are its last `queries` positions. The query rows of a step's sequences follow
// each other from row 0 on, in the order of the sequences.
struct KvSequence {
  int64_t queries = 1;
  int64_t length = 0;      // positions, those of the queries included
  int64_t first_page = 0;  // of KvLayout::pages: page first_page + i has positions begin + [i, i + 1) * page_tokens
  // The positions whose KV the table has are [begin, end): all of them, or those that lie in one tier. `begin` is a
  // border of pages and of pieces (PieceTokens(length)), a multiple of both from position 0 on, and so is `end`, or it
  // is `length`. A range may be empty. Where the layout is not by pieces, that of two queries or more has all
  // positions, or at least theirs: then nothing attends over the table, it only says where their KV goes.
  int64_t begin = 0;
  int64_t end = 0;
  // Of two queries or more, not by pieces. 0: what causality hides is not computed. Else (at least `length`): every
  // query is multiplied with positions 0..dense_length-1, which the pages have, and what it must not see is masked
  // afterwards: the dense rectangle of other methods, to compare with. The result is the same. Not with a window. One
  // query alone ignores it in AttendPieces.
  int64_t dense_length = 0;
};

// Rows of KV by pages, behind a base that each layer and tier has of its own.
struct KvLayout {
  int64_t page_tokens = 0;     // rows of a page: a block of a store, or all rows of a contiguous buffer
  std::vector<int32_t> pages;  // page n is rows [n, n + 1) * page_tokens behind the base
  std::vector<KvSequence> sequences;
  // AttendPieces takes sequences of two queries or more, too: the rows of a decode step. One query alone it always
  // takes, unless it is of a prompt.
  bool by_pieces = false;
  // Rows of prompts, of which Attention is to give the same however the prompt was cut: one query alone is attended by
  // Attention, too, and AttendPieces takes nothing. Not together with by_pieces.
  bool of_prompts = false;

  // Whether attention is by pieces: AttendPieces and MergePieces take it.
  bool has_pieces() const {
    if (of_prompts) return false;
    return by_pieces || std::all_of(sequences.begin(), sequences.end(),
                                    [](const KvSequence& sequence) { return sequence.queries == 1; });
  }
  // How many of the pages a sequence has.
  int64_t PagesOf(const KvSequence& sequence) const {
    return (std::max(sequence.end, sequence.dense_length) - sequence.begin + page_tokens - 1) / page_tokens;
  }
  // The row behind the base of a position in [sequence.begin, sequence.end).
  int64_t RowOf(const KvSequence& sequence, int64_t position) const {
    const int64_t at = position - sequence.begin;
    return pages[sequence.first_page + at / page_tokens] * page_tokens + at % page_tokens;
  }
  // One sequence in a contiguous buffer: a table of one page.
  static KvLayout OnePage(int64_t queries, int64_t length, int64_t dense_length = 0) {
    return {std::max(length, dense_length), {0}, {{queries, length, 0, 0, length, dense_length}}};
  }
};

// A layout as a device's ops read it. Immutable, so any thread may read it. An op holds the table until it has run.
class KvTable {
 public:
  virtual ~KvTable() = default;
  const KvLayout& layout() const { return layout_; }
  // Query rows.
  int64_t rows() const { return static_cast<int64_t>(positions_.size()); }
  // Of each query row.
  absl::Span<const int32_t> positions() const { return positions_; }
  // Of each query row, where its own K and V go: the row behind the base, or -1 where the table lacks its position.
  absl::Span<const int64_t> own_rows() const { return own_rows_; }
  // How many rows a base must have for every page to lie in it.
  int64_t base_rows() const { return base_rows_; }
  // Rows of the partials that the layout's query rows take, and perhaps some that no piece has.
  int64_t pieces() const { return pieces_; }

 protected:
  // `layout` is checked (CheckKvLayout).
  KvTable(KvLayout layout, int64_t pieces);

 private:
  const KvLayout layout_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> own_rows_;
  int64_t base_rows_ = 0;
  const int64_t pieces_;
};

}  // namespace runahead
