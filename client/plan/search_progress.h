// What a long search shows on stderr: a line for each entry that is done, and on a terminal one that changes in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "client/measure/measured_search.h"
#include "client/plan/search_plan.h"

namespace runahead {

// "40 s", "2 min", "1 h 20 min": coarse, as guesses are.
std::string RoughTime(absl::Duration duration);

// "1024 tokens on 2 workers: 0.123 s +- 0.004 s with 600 + 424 (9 partitions, 46 runs, 12 s; ended by noise)".
std::string EntryLine(const SearchItem& item, const MeasuredEntry& found);

// Used by one thread.
class SearchProgress {
 public:
  SearchProgress();
  ~SearchProgress() { Clear(); }
  SearchProgress(const SearchProgress&) = delete;
  SearchProgress& operator=(const SearchProgress&) = delete;

  // A run begins or has ended. Nothing without a terminal.
  void Show(const SearchItem& item, int64_t runs, size_t number, size_t of, absl::Duration left);

  // The same for the probes before the first chain, and the line that stays of them.
  void ShowProbe(const SearchItem& item, int64_t runs);
  void Probed(const SearchItem& item, int64_t runs, absl::Duration took);

  // A line that stays; `done` of `of`.
  void Finished(const SearchItem& item, const MeasuredEntry& found, size_t done, size_t of, absl::Duration left);

  // Takes the changing line away.
  void Clear();

 private:
  const bool terminal_;
  bool shown_ = false;
};

}  // namespace runahead
