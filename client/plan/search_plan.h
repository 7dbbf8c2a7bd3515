// Which entries a search of a partition table has to find, which ones it has already, and how long the rest may take.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/measure/measured_search.h"
#include "server/base/partition_file.h"

namespace runahead {

struct SearchItem {
  int64_t tokens = 0;
  int width = 0;
};

// Each once: single workers first, whose times tell where the search of chains may start; then all other widths of the
// shortest length, and of the next one.
std::vector<SearchItem> ItemsOf(std::vector<int32_t> tokens, std::vector<int32_t> widths);

// Those of `items` whose time `table` does not have.
std::vector<SearchItem> Unfinished(const std::vector<SearchItem>& items, const PartitionFile& table);

// Whether `table`, read from `path`, may be completed by measurements of this model: FAILED_PRECONDITION says what
// differs and what to do.
absl::Status CheckResumable(const PartitionFile& table, const std::string& path, const std::string& model,
                            const std::string& dtype);

// Adds what was found, in place of an entry of the same width and length. `workers`: names of the longest chain so far;
// they become the table's `devices`, unless these are more already.
void PutEntry(PartitionFile& table, const SearchItem& item, const MeasuredEntry& found,
              const std::vector<std::string>& workers);

// How long `left` will take: as long as entries like it have taken, by their tokens, else the budget.
class SearchPace {
 public:
  explicit SearchPace(absl::Duration budget) : budget_(budget) {}

  void Finished(const SearchItem& item, absl::Duration took);

  // `spent`: on the first of `left` already.
  absl::Duration Left(absl::Span<const SearchItem> left, absl::Duration spent) const;

 private:
  struct Kind {
    absl::Duration took;
    int64_t tokens = 0;
  };

  const absl::Duration budget_;
  Kind single_, chain_;  // one worker has its time measured and nothing searched
};

}  // namespace runahead
