#include "worker/decode/kvpr/split_source.h"

#include <algorithm>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr double kNeverSeconds = 1e6;

}  // namespace

LaneCosts FixedSplit::tier_costs() const {
  LaneCosts costs = costs_;
  costs.recompute_s = kNeverSeconds;
  return costs;
}

int64_t FixedSplit::OnHost(const LaneShape& shape) const {
  const int64_t window = shape.WindowBegin();
  if (!shape.may_attend_on_host || window == shape.length) return 0;
  const int64_t most = window - RoundUpTo(shape.piece_tokens, shape.l_min);
  return RoundDownTo(shape.piece_tokens, std::clamp<int64_t>(on_host_, 0, std::max<int64_t>(most, 0)));
}

absl::StatusOr<LanePlan> FixedSplit::Plan(absl::Span<const LaneShape> shapes) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLaneShapes(shapes, kSplitTile));
  LanePlan plan;
  for (const LaneShape& shape : shapes) {
    const int64_t window = shape.WindowBegin(), streamed_end = window - OnHost(shape);
    const int64_t most = std::min(shape.x_stored, streamed_end);
    plan.cuts.push_back({std::min(most, std::max(recomputed_, shape.l_min)), streamed_end, window});
  }
  plan.rows = RowsOfCuts(shapes, plan.cuts, kSplitTile);
  plan.times = TimesOfLanes(SplitObjective::kStep, costs_, plan.rows);
  return plan;
}

}  // namespace runahead
