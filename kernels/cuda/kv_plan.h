// How a KvLayout is cut for the kernels. Without CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/kv_table.h"
#include "kernels/cuda/kv_arrays.h"

namespace runahead {

// `pieces` and up to a quarter more: a batch whose sequences grow keeps its number of blocks for many steps, so that a
// recorded launch can be used again.
int64_t FlashDecodePieceRoom(int64_t pieces);

struct KvPlan {
  std::vector<AttentionItem> items;    // of each sequence
  std::vector<int64_t> first_rows;     // of each sequence: where its KV begins, if it is consecutive rows; else -1
  std::vector<PieceRange> ranges;      // of each query row, where attention is by pieces; else none
  std::vector<AttentionPiece> pieces;  // as many as FlashDecodePieceRoom says, where attention is by pieces
  std::vector<PieceRun> work;          // AttentionWork::runs: of those with tokens, each in one, by their first
  int64_t most_shared = 1;             // AttentionWork::most_queries
  std::vector<int64_t> pages;          // numbers of the kernels' pages, page_tokens rows each, behind the base
  int32_t page_tokens = 0;             // a power of two, at most kSmallestPiece: no page reaches over a cut
  int64_t most_queries = 0;            // of a sequence
};

// `layout` is checked. `repeats`: launches are recorded, and work, too, has as many runs as FlashDecodePieceRoom
// says.
KvPlan PlanKv(const KvLayout& layout, bool repeats = false);

}  // namespace runahead
