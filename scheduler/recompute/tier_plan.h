// What of a decode worker's KV and X stays in device memory: the newest KV of every sequence, X of its beginning. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/recompute/split_solver.h"

namespace runahead {

// Device memory for KV, X and their staging, of all layers.
struct TierBudget {
  int64_t bytes = 0;
  int64_t staging_bytes = 0;  // of it: what streaming needs, at least one layer's chunk
  int64_t layers = 1;
  int64_t block_tokens = 256;  // device memory is taken in blocks of so many positions of a layer
  double kv_bytes = 0;         // a position's K and V in one layer as the device keeps them
  double x_bytes = 0;          // the same of X
};

// INVALID_ARGUMENT naming the field and what would work; a budget below the staging among others.
absl::Status CheckTierBudget(const TierBudget& budget);

// One window and one prefix for all sequences. Of a sequence the window has the positions from length - window_tokens
// on, but begins at a border of its pieces; the prefix ends where X is not stored or the window begins.
struct TierPlan {
  int64_t window_tokens = 0;
  int64_t x_tokens = 0;
  int64_t bytes = 0;  // of the budget, staging included, in whole blocks
  LanePlan lanes;     // the step that it gives
};

// The sequences with residency so; `shapes` without (x_resident and resident_from are set anew). X is resident in whole
// blocks: one in which X ends is not.
std::vector<LaneShape> WithTiers(absl::Span<const LaneShape> shapes, int64_t window_tokens, int64_t x_tokens,
                                 int64_t block_tokens);

// The prefix of X, in blocks, for which the step is shortest, with the longest window that fits beside it. So where all
// KV fits, all of it is resident and nothing is streamed. Prefixes are tried at a stride, 32 of them, and then around
// the best at half the stride until that is a block. Sequences grow: plan for the lengths that they will have until the
// next plan. Takes about 40 times as long as SolveLanes. INVALID_ARGUMENT as CheckTierBudget and SolveLanes.
absl::StatusOr<TierPlan> PlanTiers(SplitObjective objective, const LaneCosts& costs, const TierBudget& budget,
                                   absl::Span<const LaneShape> shapes, int64_t tile = kSplitTile);

}  // namespace runahead
