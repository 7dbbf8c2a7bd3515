// Splits a decode step's sequences into lanes so that a layer takes as little time as it can (KVPR, arXiv 2411.17089,
// with a host lane and residency beside it; docs/kvpr.md). Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/recompute/lane_costs.h"
#include "scheduler/recompute/lane_shapes.h"

namespace runahead {

// Rows that the device's GEMM computes together. A part of a tile takes as long as a whole one.
inline constexpr int64_t kSplitTile = 64;

struct LanePlan {
  std::vector<LaneCuts> cuts;  // one a sequence, in their order
  LaneRows rows;
  LaneTimes times;
  bool smallest = false;  // every l is the smallest that is allowed, and the host lane has nothing
  bool probe = false;     // of SplitController: little more than the smallest split, to measure by
};

// The cuts with the least LaneTimes::layer_s; of equal ones, those with the smallest host lane, then the smallest l.
//
// The time depends on the sums over the sequences only. For one host lane, what the link does falls and what the device
// does grows linearly in l, with a bend where resident X ends: the best l is where the two meet, rounded to the tile
// for which the evaluated time is less. Once all whole tiles are recomputed, so are the parts of a tile in which X
// ends, the longest first, as far as the evaluated time falls. For one sequence of n positions that is, but for
// rounding,
//   row, column:  l* = n / (1 + rho)                rho = recompute_s * link_bytes_per_s / kv_bytes
//   pipelined:    l* = min(n, n / (rho + 1 - x_bytes / kv_bytes)), with MHA min(n, 2n / (2 rho + 1))
// and l_min where x_bytes >= kv_bytes, but for the row objective, which charges no X. The paper's forms have no host
// lane; theirs are the sequences' parts before the window, as if that were not there.
// Host lanes are tried in the order of HostPath, near the best of the relaxed problem (l in fractions): with pieces of
// one size, and X stored as far as the window or not at all, none is better. Otherwise the step is at most about
// the time of one piece longer than the best.
//
// INVALID_ARGUMENT: CheckLaneCosts, CheckLaneShapes. A batch of 256 takes about 50 microseconds (build/bench/split).
absl::StatusOr<LanePlan> SolveLanes(SplitObjective objective, const LaneCosts& costs,
                                    absl::Span<const LaneShape> shapes, int64_t tile = kSplitTile);

// Every l as small as it may be, and no host lane: what SolveLanes must never be slower than. The same errors.
absl::StatusOr<LanePlan> SmallestSplit(SplitObjective objective, const LaneCosts& costs,
                                       absl::Span<const LaneShape> shapes, int64_t tile = kSplitTile);

}  // namespace runahead
