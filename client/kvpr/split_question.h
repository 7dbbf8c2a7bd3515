// What `runahead kvpr solve` answers: how a decode step would be split on a machine that nobody has to have. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/recompute/tier_plan.h"

namespace runahead {

// A batch of equal sequences of one model on one machine. Whatever is absent costs nothing, or there is none of it.
struct SplitQuestion {
  SplitObjective objective = SplitObjective::kStep;
  int64_t hidden = 0;
  int64_t kv_dim = 0;
  int64_t layers = 0;
  int64_t batch = 0;
  int64_t length = 0;
  double dtype_bytes = 0;  // of an element of KV as the device keeps it
  double x_bytes = 0;      // of a position's X in one layer as the host stores it
  double kv_bytes = 0;     // of a position's K and V in one layer as the host stores them
  double link_bytes_per_s = 0;
  double flops = 0;                 // a second
  int64_t budget_bytes = 0;         // device memory for KV and X of all layers
  int64_t staging_bytes = 0;        // of it
  std::optional<int64_t> x_tokens;  // for which X is stored; absent: all
  int64_t l_min = 0;
  double device_bytes_per_s = 0;     // with which the device reads KV; 0: attention costs nothing there
  double host_lane_bytes_per_s = 0;  // with which the host attends; 0: there is no host lane
  double host_bytes_per_s = 0;       // of host memory; 0: no limit
  double project_s = 0;
  double signal_s = 0;
};

struct SplitAnswer {
  LaneCosts costs;
  TierPlan plan;
  double streamed_s = 0;  // a layer, with all KV streamed and every l as small as it may be
  // By the objective kStep, which charges what every step costs and other objectives leave out: a layer with the
  // plan's cuts, and a layer with all KV streamed.
  double achievable_s = 0;
  double achievable_streamed_s = 0;
  double window_s = 0;  // a layer, with a window of KV in the budget, and else as streamed_s
};

// Bytes of a position's K and V in one layer, each of `kv_dim` elements (KV heads times head size), as a worker stores
// them by its kv_bits: 16 as they are computed, in `dtype_bytes` an element; 8 or 4 as KvQuant in groups of
// KvGroup(kv_dim). INVALID_ARGUMENT: other bits, or no whole number of groups.
absl::StatusOr<double> StoredKvBytes(int64_t kv_dim, int64_t bits, double dtype_bytes);

// INVALID_ARGUMENT: what PlanTiers refuses.
absl::StatusOr<SplitAnswer> AnswerSplit(const SplitQuestion& question);

// One line, one object: l, gain, achievable, times, tiers, lanes (docs/kvpr.md).
std::string SplitJson(const SplitQuestion& question, const SplitAnswer& answer);
// The lanes as a table, then what they gain.
std::string SplitText(const SplitQuestion& question, const SplitAnswer& answer);

}  // namespace runahead
