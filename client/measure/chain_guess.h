// What chains may be expected to take, going by single workers' times in a partition table: where a measured search
// starts, and what its table predicts. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/partition/cost_model.h"
#include "server/base/partition_file.h"

namespace runahead {

// Fewer lengths do not tell constant, linear and quadratic costs apart.
inline constexpr size_t kLeastSingles = 3;

// The costs that explain the measured times of width 1 among `entries`: workers alike, links that cost nothing. Nothing
// where they are of fewer than kLeastSingles lengths.
std::optional<CostModel> CostOfSingles(absl::Span<const PartitionFileEntry> entries);

// The best partition in simulation. `model` is CostOfSingles'; 1 <= width <= tokens.
std::vector<int64_t> GuessParts(const CostModel& model, int64_t tokens, int width);

// Time to first token of `parts`, in simulation. `model` is valid for so many workers, the parts for SimulateChain.
double PredictSeconds(const CostModel& model, absl::Span<const int64_t> parts);

}  // namespace runahead
