// What attention kernels read of a KvTable, in arrays on the GPU. Plain: the layout of these structs is what the
// kernels see.
#pragma once

#include <cstdint>

namespace runahead {

// A sequence of a table, whose first page holds the first position that the table has. Pages here and below are the
// kernels': entries of an array of page numbers behind the base of a layer.
struct AttentionItem {
  int64_t query_row = 0;
  int64_t queries = 0;
  int64_t length = 0;
  int64_t first_page = 0;
};
static_assert(sizeof(AttentionItem) == 32);

// A piece of the KV that a query row sees: the first `tokens` rows of the pages from first_page on.
struct AttentionPiece {
  int32_t first_page = 0;
  int32_t tokens = 0;  // 0: nothing is here, and nothing is written for it
  int32_t left = 0;    // positions from its first up to the query's, by which a window says what it hides
  int32_t query_row = 0;
};
static_assert(sizeof(AttentionPiece) == 16);

// Pieces over the same rows of KV, which are read once: `first` of a query row, and first + i * step of the one `i`
// rows after it, i < count. They differ in `left` and query_row only, each by 1.
struct PieceRun {
  int32_t first = -1;  // -1: none
  int32_t count = 0;
  int32_t step = 0;
};
static_assert(sizeof(PieceRun) == 12);

// What a launch attends over: as many blocks for each of runs[0..count) as the longest takes.
struct AttentionWork {
  const AttentionPiece* pieces = nullptr;
  const PieceRun* runs = nullptr;
  int64_t count = 0;
  int64_t most_queries = 1;  // of a run
};

// The pieces of a query row.
struct PieceRange {
  int32_t first = 0;
  int32_t count = 0;
};
static_assert(sizeof(PieceRange) == 8);

}  // namespace runahead
