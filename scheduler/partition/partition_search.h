// Searches the partition of a prompt that has the lowest time to first token, simulated or measured: binary search for
// two workers, the paper's hierarchical grid search above. Pure: time, budget and noise come in through the objective.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {

inline constexpr int kMaxSearchWidth = 16;

// What the objective says of one partition. Simulated: the TTFT and no noise. Measured: an estimate from repetitions,
// and the standard error of it.
struct SearchSample {
  double seconds = 0;
  double noise_s = 0;
};

// `samples` answer the first so many of the partitions asked for. `stop`: no more, the budget is spent or somebody
// interrupts; samples may then be fewer, otherwise each partition has one.
struct SearchAnswer {
  std::vector<SearchSample> samples;
  bool stop = false;
};

// Asked for all partitions of a level at once, so that a measurement can interleave their repetitions: what drifts
// then falls on all alike. Every list of parts is of the width, each part at least 1, adding up to the tokens.
using SearchObjective = std::function<absl::StatusOr<SearchAnswer>(absl::Span<const std::vector<int64_t>> partitions)>;

// An objective without noise that takes one partition at a time.
SearchObjective ObjectiveOf(std::function<absl::StatusOr<double>(absl::Span<const int64_t> parts)> seconds);

struct SearchOptions {
  // Never more evaluations than this; a partition that comes up again is not asked for again and does not count.
  int64_t max_evaluations = 200000;
  // Of the first level, in tokens; 0: see FirstStride.
  int64_t first_stride = 0;
  // Of the last level at least this.
  int64_t last_stride = 1;
  // Off: one scan a level, as the paper describes it. On, for objectives that cost microseconds: a level goes on around
  // its best point while that lies on the rim of what was scanned, and after the last level the search looks for other
  // basins, from partitions that hardly use the first workers and from random ones.
  bool thorough = true;
  // Partitions to start from, such as InterpolateSeed's, beside the even one. With any, the first stride (where it is
  // not given) is a quarter of what it is without.
  std::vector<std::vector<int64_t>> seeds;
  // With seeds: the first level is two, one around the best of them, and one around even parts with the stride that a
  // search without seeds begins with. The search goes on from the better one. Off: the first level is around the best
  // start alone, so what lies beside even parts is not seen where a seed is better than these.
  bool around_even = false;
};

enum class SearchEnd {
  kFinished,     // the last stride is done
  kEvaluations,  // max_evaluations reached
  kStopped,      // the objective said so
  kNoise,        // what a level could gain is not more than the noise of its measurements
};

// "finished", "evaluations", "stopped", "noise".
std::string_view SearchEndName(SearchEnd end);

struct SearchLevel {
  int64_t stride = 0;
  std::vector<int64_t> centre;  // boundaries [0, b_1, .., tokens] that the level started around
  std::vector<int64_t> best;    // and the best known after it
  double best_s = 0;
  int64_t evaluations = 0;
};

struct SearchResult {
  std::vector<int64_t> parts;
  SearchSample best;
  int64_t evaluations = 0;
  std::vector<SearchLevel> levels;
  SearchEnd end = SearchEnd::kFinished;
};

// A quarter of an even part, down to a power of two, at least 1: C = 96 on 3 workers gives the paper's 8.
int64_t FirstStride(int64_t tokens, int width);

// Up to 6 workers a level scans the paper's grid, five values a boundary around the best point; above, moves of one or
// two boundaries; with two workers, a stride to either side, which halves where the boundary can be. Then the stride is
// halved. Among equals the point nearest to the start wins, so where nothing is to be gained parts stay even.
// Errors: INVALID_ARGUMENT for a width outside [1, min(kMaxSearchWidth, tokens)] or options that cannot be, INTERNAL
// when the objective answers with too few samples, and whatever the objective returns. An objective that stops before
// its first sample: DEADLINE_EXCEEDED.
absl::StatusOr<SearchResult> SearchPartition(int64_t tokens, int width, const SearchObjective& objective,
                                             const SearchOptions& options);

// Where to start for `tokens` when other lengths have been searched: interpolated between the neighbours' fractions.
// Empty where none of `searched` has this width.
absl::StatusOr<std::vector<int64_t>> InterpolateSeed(int64_t tokens, int width,
                                                     absl::Span<const PartitionEntry> searched);

}  // namespace runahead
