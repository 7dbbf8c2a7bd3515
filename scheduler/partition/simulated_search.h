// The partition that is best in simulation, searched in the one way by which `runahead plan simulate` answers and by
// which the simulator is held against the paper's tables. Pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/cost_model.h"
#include "scheduler/partition/partition_search.h"

namespace runahead {

// For schedule kKvr. Starts at even parts and, where the model has factors, at parts by the workers' speeds.
// `thorough` false: the paper's search. The first stride is a quarter of an even part, strides are halved down to one
// token, and a level is one scan of five values a boundary. So a boundary ends less than one even part from where it
// started, however far the best is: what a search on real workers can afford. Above 6 workers a level is no whole grid
// but moves of one boundary or two, which ends about where the grid does (docs/measurements.md).
// `thorough` true: SearchOptions::thorough, for the best that the model has.
// At most so many evaluations as take some five seconds. INVALID_ARGUMENT: as SearchPartition and SimulateChain.
absl::StatusOr<SearchResult> SearchSimulated(const CostModel& model, int64_t tokens, int width, bool thorough);

}  // namespace runahead
