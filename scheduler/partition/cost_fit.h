// Finds the constants of a cost model in measured times: least squares of the relative errors, no constant below 0.
// Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/cost_model.h"

namespace runahead {

// A measured TTFT: of one worker (one part, schedule kKvr), of a chain or of the baseline.
struct TimedRun {
  Schedule schedule = Schedule::kKvr;
  std::vector<int64_t> parts;  // tokens of each worker
  double seconds = 0;
  double link_bytes_per_s = 0;  // of all links in this run; 0: as the model says
};

// Which constants to look for; the others stay as they are in the model given.
struct FitChoice {
  bool fixed = true;
  bool linear = true;
  bool attention = true;
  bool floor = false;    // floor_s: only where some prompts are so short that their times no longer fall
  bool latency = false;  // latency_s of all links, one value: only with runs of more than one worker
};

// A fit is poor when a typical error, or a single one, is larger than these. A median of five repetitions on a quiet
// machine scatters by one to three percent.
inline constexpr double kPoorRmsError = 0.05;
inline constexpr double kPoorWorstError = 0.15;

struct FitResidual {
  double predicted_s = 0;
  double error = 0;  // predicted / measured - 1
};

struct CostFit {
  CostModel model;
  std::vector<FitResidual> residuals;  // one for each run, in their order
  double rms_error = 0;
  double worst_error = 0;           // the largest, without its sign
  std::vector<std::string> doubts;  // what is wrong with the fit, for people to read; empty: nothing
  bool poor() const { return !doubts.empty(); }
};

// `start` gives all that is not looked for. Doubts say: errors above the bounds, fewer runs than constants, a constant
// that the runs do not determine. INVALID_ARGUMENT: no runs, a time that is not above 0, no constant chosen, or what
// SimulateChain refuses; names the run ("runs[3]").
absl::StatusOr<CostFit> FitCostModel(const CostModel& start, absl::Span<const TimedRun> runs, const FitChoice& choice);

}  // namespace runahead
