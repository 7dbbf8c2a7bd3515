#include "scheduler/recompute/x_gain.h"

#include <algorithm>
#include <vector>

#include "kernels/base/status_macros.h"
#include "scheduler/recompute/split_solver.h"

namespace runahead {
namespace {

// Of a step of `sequences` sequences of `tokens` positions, of which the last `without` have no X, and the others all.
double LayerSeconds(const LaneCosts& costs, int64_t sequences, int64_t tokens, int64_t without) {
  std::vector<LaneShape> step(static_cast<size_t>(sequences), LaneShape{.length = tokens, .x_stored = tokens});
  for (int64_t i = sequences - without; i < sequences; ++i) step[static_cast<size_t>(i)].x_stored = 0;
  const absl::StatusOr<LanePlan> plan = SolveLanes(SplitObjective::kStep, costs, step);
  RUNAHEAD_CHECK(plan.ok());
  return plan->times.layer_s;
}

}  // namespace

double GainOfX(const LaneCosts& costs, int64_t sequences, int64_t tokens) {
  const double with_x = LayerSeconds(costs, sequences, tokens, 0);
  return with_x > 0 ? LayerSeconds(costs, sequences, tokens, sequences) / with_x : 1;
}

double LostWithoutX(const LaneCosts& costs, int64_t sequences, int64_t tokens) {
  return std::max(0.0, LayerSeconds(costs, sequences, tokens, 1) - LayerSeconds(costs, sequences, tokens, 0));
}

}  // namespace runahead
