// Which sequences the next decode step runs. Pure: state and limits are arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace runahead {

using SequenceNumber = uint64_t;

struct BatchLimits {
  int64_t max_sequences = 1;  // rows of one step; at least 1
};

struct StepPlan {
  std::vector<SequenceNumber> rows;  // one row a sequence, in this order
  size_t joined = 0;                 // how many of `waiting` are among them: its first ones
};

// `running` in the order in which they joined, `waiting` in the order of arrival. A running sequence stays in every
// step until it ends; those who wait join first come, first served, as far as there is room. No sequence overtakes
// another, so none starves.
StepPlan PlanStep(absl::Span<const SequenceNumber> running, absl::Span<const SequenceNumber> waiting,
                  const BatchLimits& limits);

}  // namespace runahead
