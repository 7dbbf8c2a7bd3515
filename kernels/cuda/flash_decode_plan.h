// What the decode kernel of flash_attention.h reads: a batch of sequences with one query each, cut into pieces of KV.
// Plain C++: the layout of these structs is what the kernels see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace runahead {

// Consecutive KV rows, [tokens][K|V][kv_heads*head_dim].
struct FlashSpan {
  const std::byte* rows = nullptr;
  int64_t tokens = 0;
};

// A query at position length - 1: it sees KV rows 0..length-1, the first of the concatenation of `spans`.
struct FlashDecodeSequence {
  int64_t query_row = 0;  // of q and out
  int64_t length = 0;     // at least 1, at most the tokens of `spans`
  std::vector<FlashSpan> spans;
};

// What one block of threads attends over, for one KV head: the first `tokens` rows of the pages from first_page on.
struct FlashDecodePiece {
  int32_t first_page = 0;
  int32_t tokens = 0;  // 0: nothing, the piece is there to make up the number
  int64_t query_row = 0;
};
static_assert(sizeof(FlashDecodePiece) == 16);

// The pieces whose results are merged, in this order, to row query_row of out.
struct FlashDecodeRow {
  int32_t first_piece = 0;
  int32_t pieces = 0;
  int64_t query_row = 0;
};
static_assert(sizeof(FlashDecodeRow) == 16);

struct FlashDecodePlan {
  std::vector<FlashDecodeRow> rows;      // a sequence each
  std::vector<FlashDecodePiece> pieces;  // as many as FlashDecodePieceRoom says
  std::vector<int64_t> pages;            // their addresses / kFlashAlignment; a page is page_tokens rows
  int32_t page_tokens = 0;               // a power of two, at most kFlashSmallestPiece
};

inline constexpr int64_t kFlashAlignment = 16;       // bytes: of every span, and of the kernels' loads
inline constexpr int64_t kFlashSmallestPiece = 256;  // tokens

// How many tokens a piece of a sequence of that length has (the last has what is left): a function of the length and of
// nothing else, for where KV is cut decides how sums are rounded, and a sequence must come out the same in any batch.
int64_t FlashDecodePieceTokens(int64_t length);

// `pieces` and up to a quarter more: a batch whose sequences grow keeps its number of blocks for many steps, so that a
// recorded launch can be used again.
int64_t FlashDecodePieceRoom(int64_t pieces);

// False for spans that are not aligned to kFlashAlignment. That depends on the sequence alone, so which kernel a
// sequence gets does, too.
bool FlashDecodeTakes(const FlashDecodeSequence& sequence);

// All sequences are such that FlashDecodeTakes, `row_bytes`, of a KV row, a multiple of kFlashAlignment. Spans may lie
// anywhere and be cut anywhere; where they are cut at multiples of kFlashSmallestPiece, `pages` is shortest.
FlashDecodePlan PlanFlashDecode(std::span<const FlashDecodeSequence> sequences, int64_t row_bytes);

// Device memory that a launch needs besides: sums of all pieces, f32. To be aligned to kFlashAlignment.
size_t FlashDecodeWorkspaceBytes(int64_t pieces, int64_t heads, int64_t head_dim);

}  // namespace runahead
