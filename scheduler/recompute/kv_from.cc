#include "scheduler/recompute/kv_from.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// A shorter prompt is handed off soon in any case, and other lanes may soon have all of it.
constexpr int64_t kLeastPrompt = 1024;

}  // namespace

int64_t KvFrom(const LaneCosts& costs, std::optional<int64_t> fixed_l, int64_t prompt_tokens) {
  if (costs.x_bytes >= costs.kv_bytes) return 0;
  if (fixed_l.has_value()) return RoundDownTo(kSplitTile, std::min(*fixed_l, prompt_tokens));
  if (prompt_tokens < kLeastPrompt) return 0;
  LaneShape alone{.length = prompt_tokens, .x_stored = prompt_tokens};
  // Only in front of a window is there a host lane, which leaves less to be recomputed.
  if (std::isfinite(costs.host_attend_s)) alone.resident_from = prompt_tokens - alone.piece_tokens;
  const absl::StatusOr<LanePlan> plan = SolveLanes(SplitObjective::kStep, costs, {&alone, 1});
  RUNAHEAD_CHECK(plan.ok());
  return RoundDownTo(kSplitTile, plan->cuts.front().recomputed_end * 3 / 4);
}

}  // namespace runahead
