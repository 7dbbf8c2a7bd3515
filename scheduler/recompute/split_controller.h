// Keeps the split right while decode runs: follows measured times, changes its mind only for a gain, and goes back to
// the smallest split where the solver's is worse in truth. Pure: measurements are arguments.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
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

// An estimate by the last measurements: an EWMA of the medians of three, so that one outlier changes nothing, and a
// jump to the median itself once that is off by a third, or where the first value was a mere guess.
class SmoothedTime {
 public:
  explicit SmoothedTime(double value, bool guess = false) : value_(value), guess_(guess) {}
  // Ignores what is not a finite number above 0.
  void Add(double measured);
  double value() const { return value_; }

 private:
  double value_;
  bool guess_;
  std::array<double, 2> last_ = {};
  int measured_ = 0;
};

struct ControllerOptions {
  double gain = 0.05;        // another split must shorten the layer by this share ..
  int64_t patience = 5;      // .. in so many steps one after the other
  int64_t look = 3;          // steps with the smallest split tell how it does
  int64_t first_rest = 16;   // steps with the smallest split after the solver's was worse for `patience` steps;
  int64_t last_rest = 1024;  // twice as many each time, up to this
};

// Plan, run the step, Observe; and again. The next step may be planned before the one that runs is observed. Not
// thread-safe: it belongs to the decode loop's thread.
//
// In place of cuts it holds on to costs: those by which the last accepted split was solved stay in use until the
// measured ones would give a layer that is `gain` shorter. So cuts move with growing, joining and leaving sequences and
// not with noise. What the model cannot say (lanes that do not overlap) it sees in the layer's time, measured by
// predicted, which it follows apart for the solver's split and for the smallest one. So it does with the link, which
// recomputation and host lane may slow down: the smallest split is judged by the rate that the link has without them,
// and looked at anew where copies have become slower and nothing tells why.
class SplitController {
 public:
  // `profile`: the costs measured at start. INVALID_ARGUMENT: CheckLaneCosts, a tile below 1.
  static absl::StatusOr<SplitController> Create(SplitObjective objective, const LaneCosts& profile,
                                                int64_t tile = kSplitTile, const ControllerOptions& options = {});

  // The next step's plan. INVALID_ARGUMENT: CheckLaneShapes; nothing changes then. Takes up to three SolveLanes.
  absl::StatusOr<LanePlan> Plan(absl::Span<const LaneShape> shapes);
  // What the step of `plan`, one of the last plans, took.
  void Observe(const LanePlan& plan, const LaneMeasurement& measured);

  // The costs as measured by now, in steps of the solver's split.
  LaneCosts costs() const;
  // Whether the last plan was the smallest split because the solver's was worse.
  bool resting() const { return resting_; }

 private:
  SplitController(SplitObjective objective, const LaneCosts& profile, int64_t tile, const ControllerOptions& options);

  // The split by the costs in use, which become the measured ones where that is worth it.
  absl::StatusOr<LanePlan> Solved(absl::Span<const LaneShape> shapes);
  // The costs as they are without recomputation and host lane.
  LaneCosts CostsOfSmallest() const;
  // Adds to the estimates. The costs of that step alone; those that were not measured as they are estimated.
  LaneCosts Take(const LaneMeasurement& measured, const LanePlan& plan);
  // Adds to the estimates of the link.
  void TakeLink(double seconds_per_byte, bool smallest);
  // How long the solver's split takes by what was seen of it, as a share of what the smallest one takes.
  double SolvedShare() const;
  // The next steps take the smallest split.
  void Rest();
  // Whether a rest is over.
  bool Rested();

  const SplitObjective objective_;
  const int64_t tile_;
  const ControllerOptions options_;
  const LaneCosts profile_;
  LaneCosts in_use_;
  // Of LaneCosts, by the same names; link: seconds a byte, in steps of the solver's split, and alone in those of the
  // smallest: never more than link.
  SmoothedTime link_, alone_, recompute_, project_, attend_, signal_, host_attend_;
  SmoothedTime solved_ratio_{1}, smallest_ratio_{1};  // a layer's time, measured by predicted

  // Of the last plan; both are the same where the solver found nothing better than the smallest.
  LanePlan solved_, smallest_;
  int64_t better_steps_ = 0;  // in which the measured costs would have given a shorter layer
  int64_t worse_steps_ = 0;
  int64_t good_steps_ = 0;  // since the solver's split was last worse
  bool resting_ = false;
  int64_t rested_ = 0;  // steps of this rest
  int64_t rest_;        // how long this rest or the next one is
};

}  // namespace runahead
