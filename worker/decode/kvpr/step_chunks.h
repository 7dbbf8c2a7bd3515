// What of a decode step passes through device staging, in chunks: which X is recomputed from, which KV is copied. The
// same in every layer. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/base/kv_table.h"
#include "scheduler/recompute/lane_shapes.h"
#include "scheduler/recompute/split_solver.h"

namespace runahead {

// A sequence of a step: its new rows are its last positions.
struct StepSequence {
  int64_t length = 0;  // positions, those of the rows included
  int64_t rows = 1;
  int64_t first_new() const { return length - rows; }  // KV of all before it is in the store
};

// Pages of a chunk: a tile of the device's products.
inline constexpr int64_t kChunkPageTokens = kSplitTile;
// Recomputation is in blocks of so many positions, from position 0 of a sequence on.
inline constexpr int64_t kRecomputeBlock = kSmallestPiece;

// Positions [begin, end) of one sequence in a chunk: [begin, recompute_end) from X, the others KV. Whole pieces; `end`
// may be the sequence's length. The last rows the step itself makes.
struct ChunkPart {
  int64_t sequence = 0;  // of the step
  int64_t begin = 0, recompute_end = 0, end = 0;
  // Of the chunk, for X as for KV: those of the recomputed positions, up to the tile in which they end, and of the
  // others.
  int64_t first_page = 0, first_streamed_page = 0;

  // Where the last tile ends that is recomputed: what KV there is in it is streamed to its own row all the same.
  int64_t tiles_end() const { return RoundUpTo(kChunkPageTokens, recompute_end); }
  int64_t x_pages() const { return (tiles_end() - begin) / kChunkPageTokens; }
  // The row of the slot in which the position's X or KV lies. Rows follow each other up to tiles_end(), and from there
  // on.
  int64_t Row(int64_t position) const {
    return position < tiles_end() ? first_page * kChunkPageTokens + position - begin
                                  : first_streamed_page * kChunkPageTokens + position - tiles_end();
  }
};

// The pages of all parts that are recomputed come first, so that one product makes them.
struct StepChunk {
  std::vector<ChunkPart> parts;
  int64_t pages = 0, x_pages = 0;
};

// The recomputed and streamed lanes of a step (`cuts`, one for each of `shapes`) in chunks of at most `chunk_pages`
// pages, which hold the longest piece. Those with X and those without take turns, as even as it goes, so that link and
// device both have something to do all the time.
std::vector<StepChunk> CutIntoChunks(absl::Span<const LaneShape> shapes, absl::Span<const LaneCuts> cuts,
                                     int64_t chunk_pages);

// Where a chunk's rows lie behind its base, for attention of the step's sequences.
KvLayout ChunkLayout(const StepChunk& chunk, absl::Span<const StepSequence> sequences);
// The positions of the rows that are made from X, whole tiles: query row i is row i of the slot, up to x_pages.
KvLayout RecomputeLayout(const StepChunk& chunk);

// Rows [first, first + count) of a step.
struct RowRun {
  int64_t first = 0, count = 0;
};
// Adds rows behind those that `runs` have, to the last run where they follow it.
void AddRun(int64_t first, int64_t count, std::vector<RowRun>& runs);
// The new rows that are in the chunk.
std::vector<RowRun> OwnRowsIn(const StepChunk& chunk, absl::Span<const StepSequence> sequences);

}  // namespace runahead
