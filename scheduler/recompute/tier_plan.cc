#include "scheduler/recompute/tier_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr int64_t kTriedPrefixes = 32;

absl::Status RefuseBudget(const char* field, double value, const char* works) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not ", works));
}

double BytesOfTiers(const TierBudget& budget, absl::Span<const LaneShape> shapes) {
  double bytes = 0;
  for (const LaneShape& shape : shapes) {
    const auto blocks = [&](int64_t positions) {
      return static_cast<double>(RoundUpTo(budget.block_tokens, positions));
    };
    bytes += budget.kv_bytes * blocks(shape.length - shape.WindowBegin()) + budget.x_bytes * blocks(shape.x_resident);
  }
  return bytes * static_cast<double>(budget.layers) + static_cast<double>(budget.staging_bytes);
}

class TierSearch {
 public:
  TierSearch(SplitObjective objective, const LaneCosts& costs, const TierBudget& budget,
             absl::Span<const LaneShape> shapes, int64_t tile)
      : objective_(objective), costs_(costs), budget_(budget), shapes_(shapes), tile_(tile) {
    for (const LaneShape& shape : shapes) {
      longest_ = std::max(longest_, shape.length);
      longest_x_ = std::max(longest_x_, shape.x_stored);
    }
  }

  absl::StatusOr<TierPlan> Best() const {
    int64_t stride = budget_.block_tokens;
    while (stride * kTriedPrefixes < longest_x_) stride *= 2;
    RUNAHEAD_ASSIGN_OR_RETURN(TierPlan best, WithPrefix(0));
    for (int64_t prefix = stride; prefix < longest_x_ + stride; prefix += stride) {
      RUNAHEAD_RETURN_IF_ERROR(Try(prefix, &best));
    }
    while (stride > budget_.block_tokens) {
      stride /= 2;
      const int64_t middle = best.x_tokens;
      if (middle > 0) RUNAHEAD_RETURN_IF_ERROR(Try(middle - stride, &best));
      RUNAHEAD_RETURN_IF_ERROR(Try(middle + stride, &best));
    }
    return best;
  }

 private:
  bool Fits(int64_t window, int64_t prefix) const {
    return BytesOfTiers(budget_, WithTiers(shapes_, window, prefix, budget_.block_tokens)) <= static_cast<double>(budget_.bytes);
  }

  // The longest window that fits, in blocks. A prefix that does not fit has none; its plan then is of no prefix.
  absl::StatusOr<TierPlan> WithPrefix(int64_t prefix) const {
    if (!Fits(0, prefix)) prefix = 0;
    int64_t window = 0, none = longest_ / budget_.block_tokens + 2;
    while (none - window > 1) {
      const int64_t middle = (window + none) / 2;
      (Fits(middle * budget_.block_tokens, prefix) ? window : none) = middle;
    }
    const std::vector<LaneShape> shapes = WithTiers(shapes_, window * budget_.block_tokens, prefix, budget_.block_tokens);
    RUNAHEAD_ASSIGN_OR_RETURN(LanePlan lanes, SolveLanes(objective_, costs_, shapes, tile_));
    return TierPlan{std::min(window * budget_.block_tokens, longest_), prefix,
                    static_cast<int64_t>(BytesOfTiers(budget_, shapes)), std::move(lanes)};
  }

  absl::Status Try(int64_t prefix, TierPlan* best) const {
    RUNAHEAD_ASSIGN_OR_RETURN(TierPlan plan, WithPrefix(prefix));
    if (plan.lanes.times.layer_s < best->lanes.times.layer_s) *best = std::move(plan);
    return absl::OkStatus();
  }

  const SplitObjective objective_;
  const LaneCosts& costs_;
  const TierBudget& budget_;
  const absl::Span<const LaneShape> shapes_;
  const int64_t tile_;
  int64_t longest_ = 0;
  int64_t longest_x_ = 0;
};

}  // namespace

absl::Status CheckTierBudget(const TierBudget& budget) {
  if (budget.layers < 1) return RefuseBudget("layers", static_cast<double>(budget.layers), "at least 1");
  if (budget.block_tokens < 1) {
    return RefuseBudget("block_tokens", static_cast<double>(budget.block_tokens), "at least 1");
  }
  if (!std::isfinite(budget.kv_bytes) || budget.kv_bytes <= 0) {
    return RefuseBudget("kv_bytes", budget.kv_bytes, "above 0");
  }
  if (!std::isfinite(budget.x_bytes) || budget.x_bytes <= 0) {
    return RefuseBudget("x_bytes", budget.x_bytes, "above 0");
  }
  if (budget.staging_bytes < 0) {
    return RefuseBudget("staging_bytes", static_cast<double>(budget.staging_bytes), "at least 0");
  }
  if (budget.bytes < budget.staging_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("budget: ", budget.bytes,
                                                   " bytes are less than what streaming a layer's chunk takes; ",
                                                   budget.staging_bytes, " bytes or more work"));
  }
  return absl::OkStatus();
}

std::vector<LaneShape> WithTiers(absl::Span<const LaneShape> shapes, int64_t window_tokens, int64_t x_tokens,
                                 int64_t block_tokens) {
  std::vector<LaneShape> tiered(shapes.begin(), shapes.end());
  for (LaneShape& shape : tiered) {
    shape.resident_from = std::max<int64_t>(0, shape.length - window_tokens);
    shape.x_resident = RoundDownTo(block_tokens, std::min({x_tokens, shape.x_stored, shape.WindowBegin()}));
  }
  return tiered;
}

absl::StatusOr<TierPlan> PlanTiers(SplitObjective objective, const LaneCosts& costs, const TierBudget& budget,
                                   absl::Span<const LaneShape> shapes, int64_t tile) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTierBudget(budget));
  RUNAHEAD_RETURN_IF_ERROR(CheckLaneShapes(shapes, tile));
  return TierSearch(objective, costs, budget, shapes, tile).Best();
}

}  // namespace runahead
