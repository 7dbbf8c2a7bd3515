// The partition that is best in simulation, searched in the one way by which `runahead plan simulate` answers and by
// which the simulator is held against the paper's tables. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/cost_model.h"
#include "scheduler/partition/partition_search.h"

namespace runahead {

// A search may take so many evaluations, however slow the simulation of a model is.
inline constexpr int64_t kLeastSimulations = 1000;

// Corners of what can be, from which no small step leads back: all but a token each on one worker, or even parts on the
// first or the last few. 1 <= width <= tokens; none for one worker.
std::vector<std::vector<int64_t>> CornerPartitions(int64_t tokens, int width);

// For schedule kKvr. `tokens` are those that the chain computes, behind `known`. Starts at even parts and, where the
// model has factors, at parts by the workers' speeds. `thorough` false: the paper's search. The first stride is a
// quarter of an even part, strides are halved down to one token, and a level is one scan of five values a boundary. So
// a boundary ends less than one even part from where it started, however far the best is: what a search on real workers
// can afford. Above 6 workers a level is no whole grid but moves of one boundary or two, which ends about where the
// grid does (docs/measurements.md). `thorough` true: SearchOptions::thorough, for the best that the model has. Starts
// at CornerPartitions too, at what the paper's search finds, and over buses at the best that the model has without
// them; it never answers worse than any of these, even where its evaluations end first (SearchEnd::kEvaluations).
// Evaluates at most `max_evaluations`, kLeastSimulations or more; 0: as many as take some five seconds, within
// SearchOptions' default. INVALID_ARGUMENT: fewer, or as SearchPartition and SimulateChain.
absl::StatusOr<SearchResult> SearchSimulated(const CostModel& model, int64_t tokens, int width, bool thorough,
                                             int64_t max_evaluations = 0, const KnownBeginning& known = {});

}  // namespace runahead
