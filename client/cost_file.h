// Files that say what a model costs on a machine (docs/planning.md, "What if"): a cost file holds the constants, a fit
// file the timings to find them from. Errors name file, line, key and what is allowed: NOT_FOUND or the like where the
// file cannot be read, INVALID_ARGUMENT for what is in it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/cost_model.h"

namespace runahead {

// YAML: layers, kv_bytes_per_token, linear_s_per_token and attention_s_per_token_pair must be there, the other fields
// of CostModel may be; links as link_latency_s and link_gbps, or as a list of links.
absl::StatusOr<CostModel> ReadCostFile(const std::string& path);

// The same from `text`; `name` stands for the file.
absl::StatusOr<CostModel> ParseCostFile(const std::string& text, const std::string& name);

// The text of a cost file that is read back as this model, numbers to 6 digits. Fields that have their defaults are
// left out. `comments` stand at its head, a line each. INVALID_ARGUMENT: it could not be read back.
absl::StatusOr<std::string> PrintCostFile(const CostModel& model, const std::vector<std::string>& comments);

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
