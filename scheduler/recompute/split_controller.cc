#include "scheduler/recompute/split_controller.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// So many plans may be made until the step of one is observed, its own included.
constexpr int kPlansUntilObserved = 3;
// A run is interrupted for a step of the smallest split after so many steps, and again after so many times as many.
constexpr int64_t kFirstCheck = 4;
constexpr int64_t kChecksApart = 4;
// R and H may be so many times smaller than they seem.
constexpr double kHope = 3;
// Rates of the smallest split that are off by more than this factor are others.
constexpr double kChanged = 1.25;
// The share of the newest step in how far steps of one split are apart (spread_). As many times as much are two steps
// apart that tell nothing; and as many times as much rates may be off by which a run seems to gain nothing.
constexpr double kNewestSpread = 0.1;
constexpr double kApart = 2, kDoubted = 4;
// By so many times as much the smallest split may take less than it seems: what is lost is reckoned from there.
constexpr double kCareful = 0.5;
// A layer that takes so many times as long as all its lanes one after the other was kept up by something else.
constexpr double kDelayed = 1.5;
// Of so many of its last steps what the solver's split loses is the mean.
constexpr int64_t kMeanOf = 16;

// Whatever the objective by which a split was solved: what decode makes of it.
LaneTimes StepOf(const LaneCosts& costs, const LaneRows& rows) {
  return TimesOfLanes(SplitObjective::kStep, costs, rows);
}

bool Changed(double a, double b, double by = kChanged) {
  return a > by * b || b > by * a;
}

double InAllLanes(const LaneMeasurement& of) {
  return of.link_s + of.recompute_s + of.project_s + of.attend_s + of.signal_s + of.host_attend_s;
}

double BytesOnLink(const LaneCosts& costs, const LaneRows& rows) {
  return costs.other_link_bytes + costs.x_bytes * static_cast<double>(rows.x_streamed) +
         costs.kv_bytes * static_cast<double>(rows.streamed);
}

}  // namespace

std::string_view SplitRestName(SplitRest rest) {
  switch (rest) {
    case SplitRest::kNone:
      return "none";
    case SplitRest::kMeasuring:
      return "measuring";
    case SplitRest::kNoGain:
      return "no_gain";
    case SplitRest::kSlower:
      return "slower";
  }
  return "";
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
      alone_(1 / profile.link_bytes_per_s, true),
      recompute_(profile.recompute_s, true),
      project_(profile.project_s, true),
      attend_(profile.attend_s, true),
      signal_(profile.signal_s, true),
      host_attend_(profile.host_attend_s, true),
      allowance_(options.allowance),
      rest_for_(options.first_rest),
      at_trial_(profile) {}

void SplitController::Restart(const LaneCosts& profile) {
  if (!CheckLaneCosts(profile).ok()) return;  // what was measured is impossible: the old costs are better
  if (phase_ == Phase::kRunning) phase_ = Phase::kResting;
  wait_ = 0;
  alone_ = SmoothedTime(1 / profile.link_bytes_per_s, true);
  if (std::isinf(profile.host_attend_s) || std::isinf(host_attend_.value())) {
    host_attend_ = SmoothedTime(profile.host_attend_s, true);
  }
}

LaneCosts SplitController::CostsOfSmallest() const {
  LaneCosts costs = profile_;
  costs.link_bytes_per_s = 1 / alone_.value();
  costs.recompute_s = recompute_.careful();
  costs.project_s = project_.value();
  costs.attend_s = attend_.value();
  costs.signal_s = signal_.value();
  costs.host_attend_s = host_attend_.careful();
  return costs;
}

LaneCosts SplitController::costs() const {
  LaneCosts costs = CostsOfSmallest();
  if (tried_) costs.link_bytes_per_s = 1 / link_.value();
  return costs;
}

absl::StatusOr<LanePlan> SplitController::Solved(absl::Span<const LaneShape> shapes) {
  const LaneCosts measured = costs();
  RUNAHEAD_ASSIGN_OR_RETURN(LanePlan kept, SolveLanes(objective_, in_use_, shapes, tile_));
  RUNAHEAD_ASSIGN_OR_RETURN(LanePlan fresh, SolveLanes(objective_, measured, shapes, tile_));
  const double kept_s = TimesOfLanes(objective_, measured, kept.rows).layer_s;
  const bool keep = fresh.times.layer_s >= (1 - options_.keep) * kept_s;
  if (!keep) in_use_ = measured;
  LanePlan solved = keep ? std::move(kept) : std::move(fresh);
  solved.times = StepOf(measured, solved.rows);
  return solved;
}

absl::StatusOr<LanePlan> SplitController::Probe(absl::Span<const LaneShape> shapes) const {
  LaneCosts hoped = CostsOfSmallest();
  hoped.recompute_s /= kHope;
  hoped.host_attend_s /= kHope;
  RUNAHEAD_ASSIGN_OR_RETURN(const LanePlan most, SolveLanes(objective_, hoped, shapes, tile_));
  if (StepOf(hoped, most.rows).layer_s > (1 - options_.gain) * smallest_.times.layer_s) return smallest_;
  LanePlan probe = smallest_;
  bool tile = true, piece = true;  // yet to be had
  for (size_t i = 0; i < shapes.size(); ++i) {
    LaneCuts& cut = probe.cuts[i];
    if (tile && most.cuts[i].recomputed_end > cut.recomputed_end) {
      cut.recomputed_end = std::min(most.cuts[i].recomputed_end, RoundDownTo(tile_, cut.recomputed_end) + tile_);
      tile = false;
    }
    if (piece && most.cuts[i].streamed_end < cut.streamed_end) {
      cut.streamed_end -= shapes[i].piece_tokens;
      piece = false;
    }
  }
  probe.rows = RowsOfCuts(shapes, probe.cuts, tile_);
  probe.times = StepOf(CostsOfSmallest(), probe.rows);
  probe.smallest = probe.rows == smallest_.rows;
  probe.probe = true;
  return probe;
}

double SplitController::SmallestSeconds() const {
  const double ratio = tried_ ? std::min(solved_ratio_.value(), smallest_ratio_.value()) : smallest_ratio_.value();
  return ratio * smallest_.times.layer_s;
}

double SplitController::SolvedShare() const {
  const double ratio = tried_ ? solved_ratio_.value() : smallest_ratio_.value();
  const double smallest_s = SmallestSeconds();
  return smallest_s > 0 ? ratio * solved_.times.layer_s / smallest_s : 1;
}

double SplitController::Risk() const {
  const double smallest_s = SmallestSeconds();
  const double serial_s = solved_.times.link_s + solved_.times.device_s + solved_.times.host_s;
  const double by_rates = smallest_s > 0 ? serial_s / smallest_s - 1 : 0;
  // A step must not spend all of the allowance when the device becomes half as fast.
  const double at_half_speed = smallest_s > 0 ? 2 * solved_.times.device_s / smallest_s - 1 : 0;
  return std::clamp(std::max(mean_loss_.value_or(by_rates), at_half_speed / 2), 0.0, options_.allowance);
}

bool SplitController::Gains() const {
  return !solved_.smallest && SolvedShare() <= 1 - options_.gain;
}

bool SplitController::KeepsRunning() const {
  if (Gains()) return true;
  const bool gained = !solved_.smallest && lost_in_ > 1 && *mean_loss_ < -options_.gain;
  return gained && SolvedShare() <= 1 + kDoubted * spread_;
}

bool SplitController::RatesChanged() const {
  const LaneCosts now = CostsOfSmallest();
  return Changed(now.link_bytes_per_s, at_trial_.link_bytes_per_s) || Changed(now.project_s, at_trial_.project_s) ||
         Changed(now.attend_s, at_trial_.attend_s);
}

void SplitController::BeginTrial(absl::Time now) {
  wait_ = kPlansUntilObserved;
  at_trial_ = CostsOfSmallest();
  next_trial_ = now + rest_for_;
  rest_for_ = std::min(2 * rest_for_, options_.last_rest);
}

void SplitController::Pause(absl::Time now) {
  phase_ = Phase::kResting;
  wait_ = kPlansUntilObserved;
  next_trial_ = now + rest_for_;
  at_trial_ = CostsOfSmallest();
  alone_ = SmoothedTime(alone_.value(), true);
  smallest_ratio_ = SmoothedTime(smallest_ratio_.value(), true);
}

void SplitController::Forget(absl::Span<const LaneShape> shapes, absl::Time now) {
  const bool changed = RatesChanged();
  if (changed) rest_for_ = options_.first_rest;
  if (Gains() || (!changed && now < next_trial_)) return;
  probed_ = false;
  if (!tried_ || (changed && SolvedShare() <= 1)) return;
  const absl::StatusOr<LanePlan> alone = SolveLanes(objective_, CostsOfSmallest(), shapes, tile_);
  if (!alone.ok()) return;
  if (StepOf(CostsOfSmallest(), alone->rows).layer_s > (1 - options_.gain) * smallest_.times.layer_s) return;
  if (changed) mean_loss_.reset();
  ForgetTrial();
}

void SplitController::ForgetTrial() {
  tried_ = false;
  solved_ratio_ = SmoothedTime(smallest_ratio_.value(), true);
  link_ = SmoothedTime(alone_.value(), true);
}

LanePlan SplitController::Planned(SplitRest why, absl::Time now, const LanePlan& plan) {
  if (rest_ != why) rest_since_ = now;
  rest_ = why;
  return plan;
}

absl::StatusOr<LanePlan> SplitController::Plan(absl::Span<const LaneShape> shapes, absl::Time now) {
  RUNAHEAD_ASSIGN_OR_RETURN(solved_, Solved(shapes));
  RUNAHEAD_ASSIGN_OR_RETURN(smallest_, SmallestSplit(SplitObjective::kStep, CostsOfSmallest(), shapes, tile_));
  if (wait_ > 0) --wait_;
  if (phase_ == Phase::kRunning) {
    if (KeepsRunning() && allowance_ > 0 && !stale_) {
      rest_for_ = options_.first_rest;
      if (++planned_ < check_at_) return Planned(SplitRest::kNone, now, solved_);
      planned_ = 0;
      check_at_ *= kChecksApart;
      return Planned(SplitRest::kMeasuring, now, smallest_);
    }
    stale_ = false;
    Pause(now);
  }
  if (wait_ > 0 || phase_ == Phase::kConfirming) return Planned(SplitRest::kMeasuring, now, smallest_);
  phase_ = Phase::kResting;
  Forget(shapes, now);
  if (!probed_ && !alone_.guess() && allowance_ > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(const LanePlan probe, Probe(shapes));
    BeginTrial(now);
    if (!probe.smallest) return Planned(SplitRest::kMeasuring, now, probe);
    probed_ = true;
  }
  if (!probed_) return Planned(allowance_ > 0 ? SplitRest::kMeasuring : SplitRest::kSlower, now, smallest_);
  if (Gains() && Risk() <= allowance_) {
    BeginTrial(now);
    phase_ = Phase::kTrial;
    lost_in_ = 0;
    return Planned(SplitRest::kMeasuring, now, solved_);
  }
  const bool by_rates = solved_.times.layer_s <= (1 - options_.gain) * smallest_.times.layer_s;
  return Planned(by_rates ? SplitRest::kSlower : SplitRest::kNoGain, now, smallest_);
}

// A link is as fast alone as beside something: so what makes copies faster there makes them faster alone, and what
// makes them slower alone makes them slower in both.
void SplitController::TakeLink(double seconds_per_byte, bool smallest) {
  (smallest ? alone_ : link_).Add(seconds_per_byte);
  const double slowed = !smallest && phase_ == Phase::kRunning ? slowed_ : 1;
  if (slowed * alone_.value() <= link_.value()) return;
  if (smallest) {
    link_ = SmoothedTime(alone_.value(), link_.guess());
  } else {
    alone_ = SmoothedTime(link_.value() / slowed, alone_.guess());
  }
}

LaneCosts SplitController::Take(const LaneMeasurement& measured, const LanePlan& plan) {
  const LaneRows& rows = plan.rows;
  LaneCosts now = plan.smallest ? CostsOfSmallest() : costs();
  // One estimate, and the same of this step alone.
  const auto take = [](SmoothedTime* estimate, double seconds, double of) {
    if (!IsTime(seconds) || !(of > 0)) return estimate->value();
    estimate->Add(seconds / of);
    return seconds / of;
  };
  const auto on_device = static_cast<double>(rows.recomputed + rows.streamed + rows.resident);
  const double bytes = BytesOnLink(profile_, rows);
  if (IsTime(measured.link_s) && bytes > 0 && !plan.probe) {
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

void SplitController::TakeOutcome(const LanePlan& plan, double layer_s) {
  if (plan.probe) {
    probed_ = true;
    wait_ = 0;
  } else if (!plan.smallest && phase_ == Phase::kTrial) {
    phase_ = Phase::kConfirming;
    tried_ = true;
  } else if (plan.smallest && phase_ == Phase::kConfirming) {
    wait_ = 0;
    phase_ = Phase::kRunning;
    planned_ = 0;
    check_at_ = kFirstCheck;
    slowed_ = std::max(1.0, link_.value() / alone_.value());
    if (!Changed(layer_s, SmallestSeconds(), kChanged + kApart * spread_)) return;
    // The trial was of another time than what it was to be compared with.
    phase_ = Phase::kResting;
    wait_ = kPlansUntilObserved;
    ForgetTrial();
  } else if (plan.smallest && phase_ == Phase::kRunning && layer_s * kChanged < SmallestSeconds()) {
    stale_ = true;
  }
}

void SplitController::TakeSpread(double over) {
  spread_ += kNewestSpread * (std::abs(over) - spread_);
  excess_ += kNewestSpread * (std::min(over, 1.0) - excess_);
}

void SplitController::TakeLoss(const LanePlan& plan, const LaneMeasurement& measured, const LaneCosts& now) {
  run_ = plan.smallest || plan.probe ? 0 : run_ + 1;
  allowance_ += options_.refill;
  if (!plan.smallest && IsTime(measured.layer_s)) {
    const double careful = plan.probe ? 1 : std::max(kCareful, 1 - kCareful * spread_);
    double smallest_s = careful * SmallestSeconds() * (1 + std::max(0.0, excess_));
    if (run_ > 1 && now.link_bytes_per_s * slowed_ * alone_.value() < 1) {
      // A link that became slower in a run did so for the smallest split as well, until that is looked at.
      LaneCosts slower = CostsOfSmallest();
      slower.link_bytes_per_s = now.link_bytes_per_s * slowed_;
      smallest_s *= StepOf(slower, smallest_.rows).layer_s / smallest_.times.layer_s;
    }
    // What a probe may have cost is no more than twice what was probed took.
    const double most_s = plan.probe ? 2 * (measured.recompute_s + measured.host_attend_s) : smallest_s;
    const double lanes_s = InAllLanes(measured);
    const double layer_s = IsTime(lanes_s) ? std::min(measured.layer_s, kDelayed * lanes_s) : measured.layer_s;
    const double loss = std::min(layer_s - smallest_s, most_s) / smallest_s;
    // A step of a run that is slow beyond what steps are apart is none of the split's doing.
    const bool runs = run_ > 1 && mean_loss_.has_value();
    allowance_ -= runs ? std::min(loss, std::max(0.0, *mean_loss_ + kApart * spread_)) : loss;
    if (!plan.probe) TakeMeanLoss(loss);
  }
  allowance_ = std::min(allowance_, options_.allowance);
}

void SplitController::TakeMeanLoss(double loss) {
  ++lost_in_;
  const double before = lost_in_ > 1 ? mean_loss_.value_or(loss) : loss;
  mean_loss_ = before + (loss - before) / static_cast<double>(std::min(lost_in_, kMeanOf));
}

void SplitController::Observe(const LanePlan& plan, const LaneMeasurement& measured) {
  if (plan.smallest && phase_ == Phase::kResting && IsTime(measured.layer_s) && !smallest_ratio_.guess()) {
    TakeSpread(measured.layer_s / SmallestSeconds() - 1);
  }
  const LaneCosts now = Take(measured, plan);
  const double ratio = measured.layer_s / StepOf(now, plan.rows).layer_s;
  if (!plan.probe) (plan.smallest ? smallest_ratio_ : solved_ratio_).Add(ratio);
  TakeOutcome(plan, measured.layer_s);
  TakeLoss(plan, measured, now);
}

}  // namespace runahead
