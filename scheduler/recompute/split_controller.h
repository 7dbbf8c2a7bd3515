// Keeps the split right while decode runs: follows measured times, and takes the solver's split only where it is faster
// than the smallest one in truth. Pure: measurements and times are arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/recompute/smoothed_time.h"
#include "scheduler/recompute/split_solver.h"

namespace runahead {

// What one step took, a layer (the step's sums divided by its layers). Times are those for which the lane was busy, not
// waits. What was not measured is 0 and changes nothing, as does anything that is not a finite number above 0.
struct LaneMeasurement {
  double link_s = 0;         // copies of X, KV and others
  double recompute_s = 0;    // R
  double project_s = 0;      // p
  double attend_s = 0;       // a
  double signal_s = 0;       // s
  double host_attend_s = 0;  // H
  double layer_s = 0;        // the whole layer
};

// Why a plan is not the solver's split.
enum class SplitRest {
  kNone,       // it is
  kMeasuring,  // not all rates are known yet, or a trial's outcome is on its way
  kNoGain,     // by the measured rates it would gain too little
  kSlower,     // it gained too little when it ran, or what it may cost is more than is left of the allowance
};
inline constexpr int kSplitRests = 4;
// "none", "measuring", "no_gain", "slower".
std::string_view SplitRestName(SplitRest rest);

struct ControllerOptions {
  double gain = 0.05;       // the solver's split runs where it takes this share less than the smallest
  double keep = 0.03;       // cuts change where others take this share less
  double allowance = 0.85;  // steps of the smallest split that trials and surprises may cost at once; what is spent ..
  double refill = 0.01;     // .. comes back by so much with each step, and by what the solver's split gains
  absl::Duration first_rest = absl::Seconds(1);  // until the next trial after one that brought nothing;
  absl::Duration last_rest = absl::Minutes(5);   // twice as long each time, up to this
};

// Plan, run the step, Observe; and again. The next step may be planned before the one that runs is observed. Not
// thread-safe: it belongs to the decode loop's thread.
//
// The law. P: the layer of a split by the measured rates (TimesOfLanes). r: what layers took by what P said of them,
// smoothed apart for the solver's split (r) and for the smallest (r0). So is the link's rate, which recomputation and
// host lane may slow down: it is never less alone, nor do lanes overlap worse, than beside them.
//     T  = r P(solver's split)           what it takes
//     T0 = min(r, r0) P(smallest)        what the smallest would take
// The solver's split runs while T <= (1 - gain) T0, by what is known in that step: so a rest ends once rates have
// changed, without a trial. What is not known is found out at small cost first:
//     a probe   measures R and H: a tile and a piece beside the smallest split
//     a trial   measures r, and the link beside the split: one step of it. The smallest split of the step after it must
//               take what it took before, else the trial was of another time than T0
//     a check   is a step of the smallest split within a run, after 4 steps, 16, 64, ..: T0 may have fallen unseen
// A trial begins where what it may lose fits in the allowance A, in steps of the smallest split:
//     loss = what its last steps lost in the mean, or with other rates link + device + host - T0 as if no lane
//     overlapped A   <- min(allowance, A + refill + 1 - layer / T0)    after each step
// with T0 as it is in the mean, delays included, and a run ends where A is spent. Beside other work single steps say
// little: where steps of the smallest split are far apart (spread), a trial is undone by larger changes only; a run
// whose steps gained in the mean goes on though smoothed rates say otherwise, by up to 4 times the spread; and what is
// lost is reckoned as if T0 were less by half of it, for then T0 is known no better. What a layer takes beyond half as
// much again as all its lanes one after the other is a delay, and counts for nothing. So what 60 steps
// lose is bounded by allowance + 60 refill, about 1.5 of 60 steps, and by what a change of rates costs in the two or
// three steps until it is seen.
class SplitController {
 public:
  // `objective`: by which splits are solved. Whether one is better than the smallest is judged by kStep, as decode runs
  // it. `profile`: the costs measured at start, which the first steps correct. INVALID_ARGUMENT: CheckLaneCosts, a tile
  // below 1.
  static absl::StatusOr<SplitController> Create(SplitObjective objective, const LaneCosts& profile,
                                                int64_t tile = kSplitTile, const ControllerOptions& options = {});

  // The next step's plan. INVALID_ARGUMENT: CheckLaneShapes; nothing changes then. Takes up to four SolveLanes.
  absl::StatusOr<LanePlan> Plan(absl::Span<const LaneShape> shapes, absl::Time now);
  // What the step of `plan`, one of the last plans, took.
  void Observe(const LanePlan& plan, const LaneMeasurement& measured);

  // No step is under way, time has passed, and the link and the host lane were measured anew.
  void Restart(const LaneCosts& profile);

  // The costs as measured by now, in steps of the solver's split.
  LaneCosts costs() const;
  // Why the last plan was not the solver's split, and since when it has been for this reason.
  SplitRest rest() const { return rest_; }
  absl::Time rest_since() const { return rest_since_; }

 private:
  // kTrial: its step is not observed yet; kConfirming: nor is the smallest split's after it.
  enum class Phase { kResting, kTrial, kConfirming, kRunning };

  SplitController(SplitObjective objective, const LaneCosts& profile, int64_t tile, const ControllerOptions& options);

  // The split by the costs in use, which become the measured ones where that is worth it.
  absl::StatusOr<LanePlan> Solved(absl::Span<const LaneShape> shapes);
  // The costs as they are without recomputation and host lane.
  LaneCosts CostsOfSmallest() const;
  // A tile and a piece beside the smallest split, of what the solver would take were R and H as small as they may be.
  // The smallest split where even that would gain nothing.
  absl::StatusOr<LanePlan> Probe(absl::Span<const LaneShape> shapes) const;
  // Adds to the estimates. The costs of that step alone; those that were not measured as they are estimated.
  LaneCosts Take(const LaneMeasurement& measured, const LanePlan& plan);
  // Adds to the estimates of the link.
  void TakeLink(double seconds_per_byte, bool smallest);
  double SmallestSeconds() const;  // T0
  double SolvedShare() const;      // T / T0
  double Risk() const;             // what a trial may cost, in T0
  bool Gains() const;              // whether the solver's split is faster by what is known
  // Whether a run goes on: it gains by what is known, or its steps did, and what is known may be off by so much.
  bool KeepsRunning() const;
  bool RatesChanged() const;  // of the smallest split, since the last trial or run
  // The solver's split stops: what the smallest takes is measured anew.
  void Pause(absl::Time now);
  void BeginTrial(absl::Time now);
  // Rates and trials are due again where time has passed or rates have changed.
  void Forget(absl::Span<const LaneShape> shapes, absl::Time now);
  void ForgetTrial();
  // What the step of a probe, a trial, the one after it, or a check tells.
  void TakeOutcome(const LanePlan& plan, double layer_s);
  // A step of the smallest split took longer than T0, by this share of it.
  void TakeSpread(double over);
  // The allowance. now: the costs of the step alone.
  void TakeLoss(const LanePlan& plan, const LaneMeasurement& measured, const LaneCosts& now);
  void TakeMeanLoss(double loss);
  LanePlan Planned(SplitRest why, absl::Time now, const LanePlan& plan);

  const SplitObjective objective_;
  const int64_t tile_;
  const ControllerOptions options_;
  const LaneCosts profile_;
  LaneCosts in_use_;
  // Of LaneCosts, by the same names; link: seconds a byte, in steps of the solver's split, and alone in those of the
  // smallest: never more than link.
  SmoothedTime link_, alone_, recompute_, project_, attend_, signal_, host_attend_;
  SmoothedTime solved_ratio_{1, true}, smallest_ratio_{1, true};  // a layer's time, measured by predicted

  // Of the last plan; both are the same where the solver found nothing better than the smallest.
  LanePlan solved_, smallest_;
  Phase phase_ = Phase::kResting;
  int wait_ = 0;         // plans until something else than the smallest split, or until a step counts as dropped
  bool probed_ = false;  // R and H are measured
  bool tried_ = false;   // solved_ratio_ and link_ are measured, and have not been forgotten
  double allowance_;
  std::optional<double> mean_loss_;  // in T0, of the solver's split when it last ran at rates like these
  int64_t lost_in_ = 0;              // steps since its trial, which mean_loss_ is of
  double spread_ = 0;  // mean of how far steps of the smallest split were off T0 while it rested, as shares of that,
  double excess_ = 0;  // and of how much longer they took: delays are no part of T0, which follows medians
  int64_t run_ = 0;    // steps of the solver's split that were observed one after the other
  double slowed_ = 1;  // how many times as long copies took beside the split when the run began
  int64_t planned_ = 0, check_at_ = 0;  // steps of the run since the last check, and until the next one
  bool stale_ = false;                  // a check found that the smallest split takes less than it did
  absl::Time next_trial_ = absl::InfinitePast();
  absl::Duration rest_for_;
  LaneCosts at_trial_;  // CostsOfSmallest when the last probe, trial or rest began
  SplitRest rest_ = SplitRest::kMeasuring;
  absl::Time rest_since_ = absl::InfinitePast();
};

}  // namespace runahead
