// The best cuts by trying all of them, with a step's times written down a second time: what the solver is compared
// with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "scheduler/recompute/lane_costs.h"
#include "scheduler/recompute/lane_shapes.h"

namespace runahead::testing {

// Sums over a step's sequences, as doubles.
struct BruteSums {
  double x_rows = 0, kv_rows = 0, computed = 0, on_device = 0, host = 0;
};

inline double BruteLayer(SplitObjective objective, const LaneCosts& c, const BruteSums& s) {
  const double v = std::min(c.link_bytes_per_s, c.host_bytes_per_s);
  const double x = s.x_rows * c.x_bytes / v, kv = (s.kv_rows * c.kv_bytes + c.other_link_bytes) / v;
  const double r = s.computed * c.recompute_s;
  switch (objective) {
    case SplitObjective::kRow:
      return std::max(r, kv);
    case SplitObjective::kColumn:
      return x + std::max(r, kv);
    case SplitObjective::kPipelined:
      return std::max(r, x + kv);
    case SplitObjective::kStep:
      break;
  }
  double layer = std::max(x + kv, c.project_s + s.on_device * c.attend_s + r);
  if (s.host > 0) {
    const double q = c.project_s + c.signal_s;  // when q of the layer is on the host
    layer = std::max(layer, q + s.host * c.host_attend_s);
    // From then on both use host memory: what is to be copied yet, and what the host attends over.
    const double copied = v * (x + kv);
    layer = std::max(layer, q + (copied - v * q + s.host * c.kv_bytes) / c.host_bytes_per_s);
  }
  return layer;
}

// Every allowed pair of cuts of one sequence, added to `sums`.
template <typename Use>
void ForEachCut(const LaneShape& shape, SplitObjective objective, const LaneCosts& costs, int64_t tile,
                const BruteSums& sums, const Use& use) {
  const int64_t n = shape.length, piece = shape.piece_tokens;
  int64_t window = n;  // the first border of pieces in what is resident
  for (int64_t at = 0; at < n; at += piece) {
    if (at >= shape.resident_from) window = std::min(window, at);
  }
  for (int64_t host_begin = 0; host_begin <= window; ++host_begin) {
    const bool no_host = host_begin == window;
    if (!no_host && (host_begin % piece != 0 || window == n || objective != SplitObjective::kStep ||
                     std::isinf(costs.host_attend_s))) {
      continue;
    }
    const int64_t forced = std::min(shape.l_min, window);
    const int64_t most = std::min(shape.x_stored, window);
    bool tiles = false;  // whether any multiple of the tile is allowed, whatever the host lane has
    for (int64_t l = forced; l <= most; ++l) tiles = tiles || l % tile == 0;
    for (int64_t l = forced; l <= std::min(most, host_begin); ++l) {
      const bool ends = l == std::min(most, host_begin);  // a part of a tile, where X or the lanes end
      if (!ends && (tiles ? l % tile != 0 : l != forced)) continue;
      BruteSums more = sums;
      const int64_t whole_x = shape.x_resident / tile * tile;
      more.x_rows += static_cast<double>(l <= shape.x_resident ? 0 : l - whole_x);
      more.kv_rows += static_cast<double>(host_begin - l);
      more.computed += static_cast<double>((l + tile - 1) / tile * tile);
      more.host += static_cast<double>(window - host_begin);
      more.on_device += static_cast<double>(n - (window - host_begin));
      use(more);
    }
  }
}

inline double BruteForce(SplitObjective objective, const LaneCosts& costs, const std::vector<LaneShape>& shapes,
                         int64_t tile, size_t first = 0, const BruteSums& sums = {}) {
  if (first == shapes.size()) return BruteLayer(objective, costs, sums);
  double best = std::numeric_limits<double>::infinity();
  ForEachCut(shapes[first], objective, costs, tile, sums, [&](const BruteSums& more) {
    best = std::min(best, BruteForce(objective, costs, shapes, tile, first + 1, more));
  });
  return best;
}

}  // namespace runahead::testing
