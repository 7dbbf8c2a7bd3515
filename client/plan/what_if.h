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
  int64_t tokens = 0;  // of the whole prompt, known ones included
  int width = 1;
  std::vector<int64_t> parts;  // of what is not known; empty: kvr searches them, all others are even
  bool thorough = false;       // kvr's search: for the best that the model has, instead of as the paper searches
  KnownBeginning known = {};
};

struct FoundBy {
  bool thorough = false;
  int64_t evaluations = 0;
  SearchEnd end = SearchEnd::kFinished;
};

// The same prompt on the same chain where nothing is known of it.
struct WholePrompt {
  std::vector<int64_t> parts;  // as WhatIfQuestion has them where none are given
  double ttft_s = 0;
};

struct WhatIfAnswer {
  Schedule schedule = Schedule::kKvr;
  std::vector<int64_t> parts;
  SimulatedRun run;
  std::vector<double> fractions;  // of the tokens that are computed, as parts
  double single_ttft_s = 0;       // all that is computed, on the chain's first worker
  std::optional<FoundBy> search;  // where there was one
  KnownBeginning known = {};
  std::optional<WholePrompt> whole;  // where something is known
};

// INVALID_ARGUMENT: a model that does not fit the width (CheckCostModel), parts that are none of the prompt, or a known
// beginning that is none (SimulateChain). Parts are searched by SearchSimulated.
absl::StatusOr<WhatIfAnswer> AnswerWhatIf(const WhatIfQuestion& question);

}  // namespace runahead
