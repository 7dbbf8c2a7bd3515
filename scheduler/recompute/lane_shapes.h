// A decode step's sequences as the solver sees them, and their cuts into lanes. Pure data and functions.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/recompute/lane_costs.h"

namespace runahead {

// What can be cut of one sequence. Positions, not bytes.
struct LaneShape {
  int64_t length = 0;    // positions that the step attends over, its own included
  // X is stored for [0, x_stored), so l is no larger: KVPR's paper has it of the prompt only, l <= s.
  int64_t x_stored = 0;
  // The smallest l that is allowed: KV of [0, l_min) is stored nowhere, only its X.
  int64_t l_min = 0;
  // Lanes whose attention is made apart are cut at multiples of it: PieceTokens(length) of kernels/base/kv_table.h. A
  // multiple of the tile.
  int64_t piece_tokens = 256;
  // Where residency begins and ends on the device: X of [0, x_resident), KV of [resident_from, length). Without any
  // window resident_from is `length` or more.
  int64_t x_resident = 0;
  int64_t resident_from = std::numeric_limits<int64_t>::max();
  // Whether the host lane may have some of it: not while KV from before the window is to pass through the device, for
  // it to become resident.
  bool may_attend_on_host = true;

  // Where the window begins that is attended as resident: at the first border of pieces in what is resident, or at
  // `length` where there is none before.
  int64_t WindowBegin() const;
};

// The cuts of one sequence: recomputed [0, recomputed_end) | streamed [.., streamed_end) | host-attended [.., host_end)
// | resident [.., length). recomputed_end is `l`: a multiple of the tile, or where X or the two lanes end within one.
// streamed_end and host_end are borders of pieces, or `length`. A host lane never has the newest piece, whose last rows
// the step itself makes: where no window is resident there is no host lane either.
struct LaneCuts {
  int64_t recomputed_end = 0;
  int64_t streamed_end = 0;
  int64_t host_end = 0;
  bool operator==(const LaneCuts&) const = default;
};

// INVALID_ARGUMENT naming the sequence, the field, the value and what would work: tiles below 1, pieces that are no
// multiple of the tile, l_min or x_resident beyond x_stored, x_stored beyond length.
absl::Status CheckLaneShapes(absl::Span<const LaneShape> shapes, int64_t tile);

// Where l may lie: at multiples of the tile from `least` to `most`, and at `end`. `least` and `most` are the same, and
// no multiple, where l_min leaves no multiple between.
struct SplitBounds {
  int64_t least = 0;
  int64_t cheap = 0;  // up to here a row's X is on the device: least <= cheap <= most
  int64_t most = 0;
  int64_t end = 0;  // less than a tile beyond `most`: where X ends, or the two lanes
  int64_t Tiles(int64_t tile) const { return (most - least) / tile; }
  int64_t CheapTiles(int64_t tile) const { return (cheap - least) / tile; }
};
// Where the recomputed and the streamed lane together end at `end`, a border of pieces or the length, at least l_min
// rounded up to the tile.
SplitBounds BoundsOfSplit(const LaneShape& shape, int64_t end, int64_t tile);

// How many positions of [0, l) have X that is not on the device. A tile travels whole.
int64_t StreamedX(const LaneShape& shape, int64_t l, int64_t tile);

// What the lanes of cut sequences have together. cuts: one a shape.
LaneRows RowsOfCuts(absl::Span<const LaneShape> shapes, absl::Span<const LaneCuts> cuts, int64_t tile);

int64_t RoundDownTo(int64_t multiple, int64_t value);
int64_t RoundUpTo(int64_t multiple, int64_t value);

}  // namespace runahead
