// Simulates a prefill over a chain of workers, layer by layer: KV-Runahead (sources: arXiv 2405.05329, with frames and
// cut-through forwarding as our edges do it) and the tensor/sequence-parallel baseline. Pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/partition/cost_model.h"
#include "scheduler/partition/schedule.h"

namespace runahead {

// The tokens [0, s_0) of a prompt, whose KV a decode worker has: the chain computes those behind them. The head gets
// their rows of a layer at bytes_per_s, as early as it takes frames of that layer, and attends once they are there.
// They go on along the line as frames of parts do.
struct KnownBeginning {
  int64_t tokens = 0;  // s_0
  double bytes_per_s = std::numeric_limits<double>::infinity();
};

struct SimulatedRun {
  double ttft_s = 0;              // the last worker has computed the logits
  std::vector<double> busy_s;     // [width] computing
  std::vector<double> waiting_s;  // [width] between its own QKV projection and the last KV that it attends over
  // Of a layer; where layers differ (CostModel::window_layers) their mean, rounded.
  std::vector<int64_t> dot_products;  // [width] of queries and keys, per head
  int64_t traffic_entries = 0;        // (K, V) pairs of one token over one link
  double traffic_bytes = 0;           // all links, all layers
  double known_bytes = 0;             // that the head gets of a known beginning, all layers
};

// `parts`: tokens of each worker, head first, behind those of `known`; schedules that differ in their parts only are
// one to it. Frames of a layer use a link before those of the next; within a layer in the order in which they are
// ready. INVALID_ARGUMENT: a bad model (CheckCostModel), no parts, a part below 1, more than 2^30 tokens, or a `known`
// that is negative, comes at no pace, or is to be all-gathered (IsTsp). Costs about layers * width^2 / 2 steps of a few
// nanoseconds, so a search may call it some 10^5 times.
absl::StatusOr<SimulatedRun> SimulateChain(const CostModel& model, Schedule schedule, absl::Span<const int64_t> parts,
                                           const KnownBeginning& known = {});

}  // namespace runahead
