#include "scheduler/recompute/x_gain.h"

#include <vector>

#include "kernels/base/status_macros.h"
#include "scheduler/recompute/split_solver.h"

namespace runahead {

double GainOfX(const LaneCosts& costs, int64_t sequences, int64_t tokens) {
  LaneShape shape{.length = tokens};
  const auto layer_s = [&](int64_t x_stored) {
    shape.x_stored = x_stored;
    const std::vector<LaneShape> step(static_cast<size_t>(sequences), shape);
    const absl::StatusOr<LanePlan> plan = SolveLanes(SplitObjective::kStep, costs, step);
    RUNAHEAD_CHECK(plan.ok());
    return plan->times.layer_s;
  };
  const double with_x = layer_s(tokens);
  return with_x > 0 ? layer_s(0) / with_x : 1;
}

}  // namespace runahead
