// What `runahead plan simulate` answers: how a prompt would run on a chain that nobody has to have. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/cost_model.h"
#include "scheduler/partition/partition_search.h"
#include "scheduler/partition/schedule.h"

namespace runahead {

struct WhatIfQuestion {
  CostModel model;
  Schedule schedule = Schedule::kKvr;
  int64_t tokens = 0;
  int width = 1;
  std::vector<int64_t> parts;  // empty: kvr searches them, all others are even
  bool thorough = false;       // kvr's search: for the best that the model has, instead of as the paper searches
};

struct FoundBy {
  bool thorough = false;
  int64_t evaluations = 0;
  SearchEnd end = SearchEnd::kFinished;
};

struct WhatIfAnswer {
  Schedule schedule = Schedule::kKvr;
  std::vector<int64_t> parts;
  SimulatedRun run;
  std::vector<double> fractions;  // of the tokens, as parts
  double single_ttft_s = 0;       // the whole prompt on the chain's first worker
  std::optional<FoundBy> search;  // where there was one
};

// INVALID_ARGUMENT: a model that does not fit the width (CheckCostModel), or parts that are none of the prompt.
// Parts are searched by SearchSimulated.
absl::StatusOr<WhatIfAnswer> AnswerWhatIf(const WhatIfQuestion& question);

}  // namespace runahead
