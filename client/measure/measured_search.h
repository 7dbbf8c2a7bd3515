// The search of one entry of a partition table by measurement: partitions are timed on a live chain. Pure but for the
// clock and the timer that are handed in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/measure/chain_guess.h"
#include "scheduler/partition/partition_search.h"
#include "server/base/clock.h"
#include "server/base/partition_file.h"

namespace runahead {

// Runs one prompt that is cut into `parts` and returns its time to first token in seconds.
using ChainTimer = std::function<absl::StatusOr<double>(absl::Span<const int64_t> parts)>;

struct MeasureOptions {
  int repeats = 5;                            // at most so many runs of a partition; at least 1
  absl::Duration budget = absl::Seconds(60);  // for one entry, or all probes. The run that is on then is waited for.
  CostModel shape = UnknownShape();           // what CostOfChains asks for
};

// The objective of a search over one length and width. The partitions of a level run in turn, and all once more, until
// each has run `repeats` times. The first partition of all, the reference, takes its turn in every level, and what
// counts of another is the median of its ratios to the reference's run of the same round, times the reference's median:
// what drifts falls on both alike. Of many partitions the slower half is left out after each round, down to a handful;
// such a one never counts as faster than those that stayed. Before the first level one run warms up and is not counted.
// When the budget ends within a level, its partitions count only if they were in turn often enough (of the first level:
// once). Errors are the timer's.
class MeasuredObjective {
 public:
  // `timer` and `clock` must outlive it; the budget begins now.
  MeasuredObjective(const ChainTimer& timer, const Clock& clock, const MeasureOptions& options);

  absl::StatusOr<SearchAnswer> operator()(absl::Span<const std::vector<int64_t>> partitions);

  // Of a partition that has one.
  const SearchSample& sample(const std::vector<int64_t>& parts) const { return samples_.at(parts); }
  // The times of its runs, as they were.
  const std::vector<double>& times(const std::vector<int64_t>& parts) const { return times_.at(parts); }
  int64_t runs() const { return runs_; }  // the warm-up included
  absl::Duration took() const { return clock_.Now() - began_; }

 private:
  absl::StatusOr<double> Time(const std::vector<int64_t>& parts);
  absl::StatusOr<int> RunRounds(absl::Span<const std::vector<int64_t>> partitions,
                                std::vector<std::vector<double>>& ratios, std::vector<size_t>& running, bool* stopped);

  const ChainTimer& timer_;
  const Clock& clock_;
  const MeasureOptions options_;
  const absl::Time began_;
  std::vector<int64_t> reference_;
  double reference_s_ = 0;  // its median on the first level; 0 before
  std::map<std::vector<int64_t>, SearchSample> samples_;
  std::map<std::vector<int64_t>, std::vector<double>> times_;
  int64_t runs_ = 0;
};

struct MeasuredEntry {
  std::vector<int64_t> parts;
  double ttft_s = 0;                       // the median of its runs
  double spread_s = 0;                     // and half of their range
  std::optional<double> predicted_s = {};  // in simulation, by CostOfChains; where that can be said
  int64_t partitions = 0;                  // that were tried
  int64_t runs = 0;
  absl::Duration took;
  SearchEnd end = SearchEnd::kFinished;
};

// Times `partitions` (ProbePartitions', at least one) in turn, up to three times each, after one run that warms up.
// Those that the budget leaves no time for are left out, and so are those that a worker has no memory for
// (OUT_OF_RANGE). Each counts by its median. Other errors are the timer's.
absl::StatusOr<std::vector<TimedRun>> TimeProbes(absl::Span<const std::vector<int64_t>> partitions,
                                                 const ChainTimer& timer, const Clock& clock,
                                                 const MeasureOptions& options);

// Measures around even parts and around the best of what is known: what neighbours of this width suggest, and the
// optimum of CostOfChains' model. Strides begin at a quarter of an even part around even parts, at a quarter of that
// around the others, go on from the better side, and end at about a sixty-fourth of the tokens. A level that ends the
// search by its noise moves the parts only if that gains more than two standard errors. Width 1 is only timed.
// Errors: SearchPartition's and the timer's.
absl::StatusOr<MeasuredEntry> MeasureEntry(int64_t tokens, int width, const ChainKnowledge& known,
                                           const ChainTimer& timer, const Clock& clock, const MeasureOptions& options);

}  // namespace runahead
