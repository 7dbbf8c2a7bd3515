// Fit files: timings of runs, to find the constants of a cost file from (docs/planning.md, "What if"). Errors as those
// of cost files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/cost_model.h"

namespace runahead {

struct FitFile {
  CostModel model;  // without what is to be found
  std::vector<TimedRun> runs;
  bool find_floor = false;    // whether FitOf may add these constants: they are not given, and for latency there are
  bool find_latency = false;  // runs of more than one worker
  std::string assumed;        // what the file leaves open and how it was taken, for people to read; may be empty
};

// YAML with the same fields but the three that are looked for, and `runs`; or plain lines of tokens and seconds.
absl::StatusOr<FitFile> ReadFitFile(const std::string& path);

// Finds fixed, linear and attention; where these describe the runs poorly and the runs are enough, floor and latency as
// well. Errors as FitCostModel's.
absl::StatusOr<CostFit> FitOf(const FitFile& file);

}  // namespace runahead
