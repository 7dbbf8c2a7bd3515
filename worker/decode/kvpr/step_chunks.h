// What of a decode step passes through device staging, in chunks: which X is recomputed from, which KV is copied. The
// same in every layer. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/base/kv_table.h"
#include "scheduler/recompute/lane_shapes.h"

namespace runahead {

// Pages of a chunk: as many rows as a block of the stores, and as a block of recomputation.
inline constexpr int64_t kChunkPageTokens = kSmallestPiece;

// Positions [begin, end) of one sequence in a chunk: [begin, recompute_end) from X, the others KV. Whole pieces; `end`
// may be the sequence's length, whose last row the step itself makes.
struct ChunkPart {
  int64_t sequence = 0;  // of the step
  int64_t begin = 0, recompute_end = 0, end = 0;
  int64_t first_page = 0;  // of the chunk, for X as for KV
  // The row of the slot in which the position's X or KV lies.
  int64_t Row(int64_t position) const { return first_page * kChunkPageTokens + position - begin; }
};

struct StepChunk {
  std::vector<ChunkPart> parts;
  int64_t pages = 0;
  int64_t x_rows = 0;
};

// The recomputed and streamed lanes of a step (`cuts`, one for each of `shapes`) in chunks of at most `chunk_pages`
// pages, which hold the longest piece. Those with X and those without take turns, as even as it goes, so that link and
// device both have something to do all the time.
std::vector<StepChunk> CutIntoChunks(absl::Span<const LaneShape> shapes, absl::Span<const LaneCuts> cuts,
                                     int64_t chunk_pages);

// Where a chunk's rows lie behind its base, for attention of the step's sequences, of `lengths` positions each.
KvLayout ChunkLayout(const StepChunk& chunk, absl::Span<const int64_t> lengths);
// Where rows go that are made from X: a query row for each, in the order of the parts.
KvLayout RecomputeLayout(const StepChunk& chunk);

// Sequences [first, first + count) of a step, which follow each other.
struct SequenceRun {
  int64_t first = 0, count = 0;
};
// The sequences whose own, newest row is in the chunk.
std::vector<SequenceRun> OwnRowsIn(const StepChunk& chunk, absl::Span<const int64_t> lengths);

}  // namespace runahead
