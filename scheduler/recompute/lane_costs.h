// What the lanes of a decode step cost in one layer, and how long the step takes by each objective. Pure data and
// functions. The lanes of a sequence, by position: recomputed from X | streamed KV | host-attended | resident.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace runahead {

// What is minimised. kRow, kColumn and kPipelined are the forms of KVPR's paper (arXiv 2411.17089) and of X that is
// prefetched over layers; kStep is what our decode step does. X and KV: seconds that they take on the link, R: seconds
// of recomputation; the others are those of LaneTimes.
//   kRow:       max(R, KV), X is hidden in the layer before
//   kColumn:    X + max(R, KV)
//   kPipelined: max(R, X + KV)
//   kStep:      max(link, p + a + R, p + s + H), and what copies and host lane can have of host memory together
enum class SplitObjective { kRow, kColumn, kPipelined, kStep };

// "row", "column", "pipelined", "step".
std::string_view SplitObjectiveName(SplitObjective objective);
std::optional<SplitObjective> ParseSplitObjective(std::string_view name);
std::vector<std::string> SplitObjectiveNames();

// Of one layer. "A position" is one position of one sequence: its K and V, or its X.
struct LaneCosts {
  double link_bytes_per_s = 0;  // v: from the host to the device
  double kv_bytes = 0;          // a position's K and V as the host stores them and as they travel
  double x_bytes = 0;           // a position's X; larger than kv_bytes where KV is quantised or heads share KV
  double other_link_bytes = 0;  // what crosses the link however a step is split: streamed weights
  double recompute_s = 0;       // a position's K and V from its X, on the device: R / rows
  double project_s = 0;         // p: the projections and the MLP of the whole batch
  double attend_s = 0;          // attention over a position, on the device: a / rows
  double signal_s = 0;          // s: the two small transfers and the signals of the host lane
  // Attention over a position in the host lane while no copy runs: H / rows. Infinity: there is no host lane.
  double host_attend_s = std::numeric_limits<double>::infinity();
  // Host memory's bandwidth, which copies and the host lane share. Infinity: they do not disturb each other.
  double host_bytes_per_s = std::numeric_limits<double>::infinity();
};

// INVALID_ARGUMENT naming the field, the value and what would work.
absl::Status CheckLaneCosts(const LaneCosts& costs);

// How many positions of all sequences together each lane has.
struct LaneRows {
  int64_t recomputed = 0;
  int64_t computed = 0;    // rows that the device computes for them: whole tiles
  int64_t x_streamed = 0;  // of `recomputed`, those whose X is not on the device
  int64_t streamed = 0;
  int64_t host = 0;
  int64_t resident = 0;
  bool operator==(const LaneRows&) const = default;
};

// Seconds of one layer. layer_s is the largest of the four above it.
struct LaneTimes {
  double link_s = 0;    // kRow: (other + KV) / v, else (other + X + KV) / v; v is host_bytes_per_s where that is less
  double device_s = 0;  // kStep: p + a + R; kColumn: X / v + R; else R
  double host_s = 0;    // kStep with a host lane: p + s + H; else 0
  // kStep with a host lane: until q is there only copies use host memory, at v; then both, at host_bytes_per_s:
  // p + s + (copied + attended - v (p + s)) / host_bytes_per_s. Else 0.
  double shared_s = 0;
  double layer_s = 0;
};

LaneTimes TimesOfLanes(SplitObjective objective, const LaneCosts& costs, const LaneRows& rows);

// What makes a layer as long as it is: the largest of its times, of equal ones the first.
enum class LaneBound { kLink, kDevice, kHost, kHostMemory };
inline constexpr int kLaneBounds = 4;
LaneBound BoundOf(const LaneTimes& times);
// "link", "device", "host", "host_memory".
std::string_view LaneBoundName(LaneBound bound);

}  // namespace runahead
