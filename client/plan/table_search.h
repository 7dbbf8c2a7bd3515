// A whole partition table by measurement: entry after entry, the file written after each.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/measure/measured_search.h"
#include "client/plan/search_plan.h"
#include "client/plan/search_progress.h"
#include "server/base/clock.h"
#include "server/base/partition_file.h"

namespace runahead {

// Used by one thread.
class TableSearch {
 public:
  // A chain to measure on: ServiceTimer's Time and workers.
  struct Chain {
    ChainTimer time;
    std::function<std::vector<std::string>()> workers;
  };

  // `table` holds what is kept, and what the file says of its model; it is written to `path`. `clock` must outlive it.
  TableSearch(std::string path, PartitionFile table, Chain chain, const Clock& clock, const MeasureOptions& options)
      : path_(std::move(path)),
        table_(std::move(table)),
        chain_(std::move(chain)),
        clock_(clock),
        options_(options),
        pace_(options.budget) {}

  // Finds those of `items` that the table lacks, after a few probes where there are chains among them; shows on stderr
  // how it goes. With an error (the chain's, or the file's) the file holds what was finished before, or is as it was.
  absl::Status Run(const std::vector<SearchItem>& items);

  const PartitionFile& table() const { return table_; }
  size_t found() const { return found_.size(); }  // entries, by Run
  // What Run has found: {"table","model","dtype","entries":[..]} on one line without a newline.
  std::string Json() const;

 private:
  struct Found {
    SearchItem item;
    MeasuredEntry entry;
  };

  absl::Status Probe();
  absl::StatusOr<MeasuredEntry> Measure(const SearchItem& item, size_t all);

  const std::string path_;
  PartitionFile table_;
  const Chain chain_;
  const Clock& clock_;
  const MeasureOptions options_;
  SearchPace pace_;
  SearchProgress progress_;
  std::vector<SearchItem> left_;
  std::vector<TimedRun> probes_;  // taken before the first chain
  std::vector<Found> found_;
};

}  // namespace runahead
