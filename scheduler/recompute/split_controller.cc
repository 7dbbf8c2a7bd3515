#include "scheduler/recompute/split_controller.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// The share of the newest median in an estimate.
constexpr double kNewest = 0.1;
// A median that is off by more than this factor is no noise: two of three measurements agree in it.
constexpr double kJump = 1.35;
// So many steps of the solver's split in which it was not worse, and the next rest is a first one again.
constexpr int64_t kGoodSteps = 64;

bool Measured(double value) {
  return std::isfinite(value) && value > 0;
}

double MedianOf(double a, double b, double c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

double BytesOnLink(const LaneCosts& costs, const LaneRows& rows) {
  return costs.other_link_bytes + costs.x_bytes * static_cast<double>(rows.x_streamed) +
         costs.kv_bytes * static_cast<double>(rows.streamed);
}

}  // namespace

void SmoothedTime::Add(double measured) {
  if (!Measured(measured)) return;
  const std::array<double, 2> before = std::exchange(last_, {last_[1], measured});
  if (measured_ < 2) {
    ++measured_;
    return;
  }
  const double now = MedianOf(before[0], before[1], measured);
  const bool jump = std::exchange(guess_, false) || now > kJump * value_ || now * kJump < value_;
  value_ += (jump ? 1 : kNewest) * (now - value_);
}

absl::StatusOr<SplitController> SplitController::Create(SplitObjective objective, const LaneCosts& profile,
                                                        int64_t tile, const ControllerOptions& options) {
  RUNAHEAD_RETURN_IF_ERROR(CheckLaneCosts(profile));
  RUNAHEAD_RETURN_IF_ERROR(CheckLaneShapes({}, tile));
  return SplitController(objective, profile, tile, options);
}

SplitController::SplitController(SplitObjective objective, const LaneCosts& profile, int64_t tile,
                                 const ControllerOptions& options)
    : objective_(objective),
      tile_(tile),
      options_(options),
      profile_(profile),
      in_use_(profile),
      link_(1 / profile.link_bytes_per_s, true),
      alone_(1 / profile.link_bytes_per_s),
      recompute_(profile.recompute_s),
      project_(profile.project_s),
      attend_(profile.attend_s),
      signal_(profile.signal_s),
      host_attend_(profile.host_attend_s),
      rest_(options.first_rest) {}

LaneCosts SplitController::costs() const {
  LaneCosts costs = profile_;
  costs.link_bytes_per_s = 1 / link_.value();
  costs.recompute_s = recompute_.value();
  costs.project_s = project_.value();
  costs.attend_s = attend_.value();
  costs.signal_s = signal_.value();
  costs.host_attend_s = host_attend_.value();
  return costs;
}

LaneCosts SplitController::CostsOfSmallest() const {
  LaneCosts smallest = costs();
  smallest.link_bytes_per_s = 1 / alone_.value();
  return smallest;
}

absl::StatusOr<LanePlan> SplitController::Solved(absl::Span<const LaneShape> shapes) {
  const LaneCosts measured = costs();
  RUNAHEAD_ASSIGN_OR_RETURN(LanePlan kept, SolveLanes(objective_, in_use_, shapes, tile_));
  RUNAHEAD_ASSIGN_OR_RETURN(LanePlan fresh, SolveLanes(objective_, measured, shapes, tile_));
  kept.times = TimesOfLanes(objective_, measured, kept.rows);
  const bool better = fresh.times.layer_s < (1 - options_.gain) * kept.times.layer_s;
  better_steps_ = better ? better_steps_ + 1 : 0;
  if (better_steps_ < options_.patience) return kept;
  better_steps_ = 0;
  in_use_ = measured;
  return fresh;
}

absl::StatusOr<LanePlan> SplitController::Plan(absl::Span<const LaneShape> shapes) {
  RUNAHEAD_ASSIGN_OR_RETURN(solved_, Solved(shapes));
  RUNAHEAD_ASSIGN_OR_RETURN(smallest_, SmallestSplit(objective_, CostsOfSmallest(), shapes, tile_));
  if (resting_ && Rested()) resting_ = false;
  return resting_ ? smallest_ : solved_;
}

double SplitController::SolvedShare() const {
  const double smallest_s = smallest_ratio_.value() * smallest_.times.layer_s;
  return smallest_s > 0 ? solved_ratio_.value() * solved_.times.layer_s / smallest_s : 1;
}

bool SplitController::Rested() {
  ++rested_;
  // Everything takes longer than predicted, not the solver's split alone.
  if (rested_ > options_.look && SolvedShare() < 1) return true;
  if (rested_ <= rest_) return false;
  // Time has passed, so try again, without what was seen.
  rest_ = std::min(2 * rest_, options_.last_rest);
  solved_ratio_ = smallest_ratio_;
  link_ = SmoothedTime(alone_.value(), true);
  return true;
}

void SplitController::Rest() {
  resting_ = true;
  rested_ = worse_steps_ = 0;
}

// A link is as fast alone as beside something: so what makes copies faster there makes them faster alone, and what
// makes them slower alone makes them slower in both.
void SplitController::TakeLink(double seconds_per_byte, bool smallest) {
  (smallest ? alone_ : link_).Add(seconds_per_byte);
  if (alone_.value() <= link_.value()) return;
  if (smallest) {
    link_ = SmoothedTime(alone_.value());
  } else {
    alone_ = SmoothedTime(link_.value());
  }
}

LaneCosts SplitController::Take(const LaneMeasurement& measured, const LanePlan& plan) {
  const LaneRows& rows = plan.rows;
  LaneCosts now = plan.smallest ? CostsOfSmallest() : costs();
  // One estimate, and the same of this step alone.
  const auto take = [](SmoothedTime* estimate, double seconds, double of) {
    if (!Measured(seconds) || !(of > 0)) return estimate->value();
    estimate->Add(seconds / of);
    return seconds / of;
  };
  const auto on_device = static_cast<double>(rows.recomputed + rows.streamed + rows.resident);
  const double bytes = BytesOnLink(profile_, rows);
  if (Measured(measured.link_s) && bytes > 0) {
    now.link_bytes_per_s = bytes / measured.link_s;
    TakeLink(measured.link_s / bytes, plan.smallest);
  }
  now.recompute_s = take(&recompute_, measured.recompute_s, static_cast<double>(rows.computed));
  now.project_s = take(&project_, measured.project_s, 1);
  now.attend_s = take(&attend_, measured.attend_s, on_device);
  now.signal_s = take(&signal_, measured.signal_s, 1);
  now.host_attend_s = take(&host_attend_, measured.host_attend_s, static_cast<double>(rows.host));
  return now;
}

void SplitController::Observe(const LanePlan& plan, const LaneMeasurement& measured) {
  const LaneCosts now = Take(measured, plan);
  SmoothedTime& ratio = plan.smallest ? smallest_ratio_ : solved_ratio_;
  ratio.Add(measured.layer_s / TimesOfLanes(objective_, now, plan.rows).layer_s);
  if (plan.smallest) return;
  worse_steps_ = SolvedShare() > 1 ? worse_steps_ + 1 : 0;
  good_steps_ = worse_steps_ == 0 ? good_steps_ + 1 : 0;
  if (good_steps_ >= kGoodSteps) rest_ = options_.first_rest;
  const bool much_slower = link_.value() > kJump * alone_.value();
  if (worse_steps_ >= options_.patience || (worse_steps_ > 0 && much_slower)) Rest();
}

}  // namespace runahead
