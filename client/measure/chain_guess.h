// What chains may be expected to take, going by times of single workers and a few probes: where a measured search
// starts, and what its table predicts. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/cost_model.h"
#include "server/base/partition_file.h"

namespace runahead {

// Fewer lengths do not tell constant, linear and quadratic costs apart.
inline constexpr size_t kLeastSingles = 3;

// What is known of a line before an entry of its table is searched.
struct ChainKnowledge {
  absl::Span<const PartitionFileEntry> searched = {};  // of the same model and line
  absl::Span<const TimedRun> probes = {};              // of ProbePartitions; those of chains all of the same width
};

// A model whose shape nobody knows: so many layers that a chain's fill is as short as that of any real one, and a byte
// of KV a token, so that a link's bytes_per_s are tokens a second.
CostModel UnknownShape();

// All but a token each on worker `heavy` of `width`. 0 <= heavy < width <= tokens.
std::vector<int64_t> HeavyParts(int64_t tokens, int heavy, int width);

// What to time so that CostOfChains knows chains of up to `width` workers: single prompts, shortest first, where
// `searched` has too few of them; even parts, which tell what working together costs; and for each link all but a token
// each on the worker before it, so that its KV crosses this link and those behind it. 1 < width <= tokens.
std::vector<std::vector<int64_t>> ProbePartitions(absl::Span<const PartitionFileEntry> searched, int64_t tokens,
                                                  int width);

// The costs that explain the times of single workers and of the probes. Workers are alike; a link without a probe, or
// whose probe takes hardly longer than without it, costs nothing. `shape` gives layers, kv_bytes_per_token and windows.
// Nothing where single workers were timed at fewer than kLeastSingles lengths.
std::optional<CostModel> CostOfChains(const CostModel& shape, const ChainKnowledge& known);

// The best partition in simulation, by a thorough search. `model` is CostOfChains'; 1 <= width <= tokens, and no more
// than were probed.
std::vector<int64_t> GuessParts(const CostModel& model, int64_t tokens, int width);

// Time to first token of `parts`, in simulation. `model` is valid for so many workers, the parts for SimulateChain.
double PredictSeconds(const CostModel& model, absl::Span<const int64_t> parts);

}  // namespace runahead
