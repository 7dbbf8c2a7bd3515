// The search of one entry of a partition table by measurement: partitions are timed on a live chain. Pure but for the
// clock and the timer that are handed in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/partition/partition_search.h"
#include "server/base/clock.h"
#include "server/base/partition_file.h"

namespace runahead {

// Runs one prompt that is cut into `parts` and returns its time to first token in seconds.
using ChainTimer = std::function<absl::StatusOr<double>(absl::Span<const int64_t> parts)>;

struct MeasureOptions {
  int repeats = 5;                            // at most so many runs of a partition; at least 1
  absl::Duration budget = absl::Seconds(60);  // for one entry. The run that is on when it ends is waited for.
};

// The median of `times`, of which there is at least one, and half of their range.
SearchSample SampleOf(std::vector<double> times);

// The objective of a search over one length and width. The partitions of a level run in turn, and all once more, until
// each has run `repeats` times: what drifts falls on all alike. Of many partitions the slower half is left out after
// each round, down to a handful; such a one never counts as faster than those that stayed. A sample is the median and
// half of the range. Before the first level one run warms up and is not counted. When the budget ends within a level,
// its partitions count only if they were in turn often enough (of the first level: once). Errors are the timer's.
class MeasuredObjective {
 public:
  // `timer` and `clock` must outlive it; the budget begins now.
  MeasuredObjective(const ChainTimer& timer, const Clock& clock, const MeasureOptions& options);

  absl::StatusOr<SearchAnswer> operator()(absl::Span<const std::vector<int64_t>> partitions);

  // Of a partition that has one.
  const SearchSample& sample(const std::vector<int64_t>& parts) const { return samples_.at(parts); }
  int64_t runs() const { return runs_; }  // the warm-up included
  absl::Duration took() const { return clock_.Now() - began_; }

 private:
  absl::StatusOr<double> Time(absl::Span<const int64_t> parts);

  const ChainTimer& timer_;
  const Clock& clock_;
  const MeasureOptions options_;
  const absl::Time began_;
  std::map<std::vector<int64_t>, SearchSample> samples_;
  int64_t runs_ = 0;
};

struct MeasuredEntry {
  std::vector<int64_t> parts;
  SearchSample sample;
  int64_t partitions = 0;  // that were tried
  int64_t runs = 0;
  absl::Duration took;
  SearchEnd end = SearchEnd::kFinished;
};

// Searches from the even split and from what neighbours of this width in `searched` suggest; strides begin at a quarter
// of an even part and end at about a sixty-fourth of the tokens. A level that ends the search by its noise moves the
// parts only if that gains more than the spread. Width 1 is only timed. Errors: SearchPartition's and the timer's.
absl::StatusOr<MeasuredEntry> MeasureEntry(int64_t tokens, int width, absl::Span<const PartitionFileEntry> searched,
                                           const ChainTimer& timer, const Clock& clock, const MeasureOptions& options);

}  // namespace runahead
