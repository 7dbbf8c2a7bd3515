#include "worker/decode/kvpr/split_source.h"

#include <algorithm>

#include "kernels/base/status_macros.h"

namespace runahead {

absl::StatusOr<LanePlan> FixedSplit::Plan(absl::Span<const LaneShape> shapes) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLaneShapes(shapes, kSplitTile));
  LanePlan plan;
  for (const LaneShape& shape : shapes) {
    const int64_t streamed_end = shape.WindowBegin();
    const int64_t most = std::min(shape.x_stored, streamed_end);
    plan.cuts.push_back({std::min(most, std::max(recomputed_, shape.l_min)), streamed_end, streamed_end});
  }
  plan.rows = RowsOfCuts(shapes, plan.cuts, kSplitTile);
  plan.times = TimesOfLanes(SplitObjective::kStep, costs_, plan.rows);
  return plan;
}

}  // namespace runahead
