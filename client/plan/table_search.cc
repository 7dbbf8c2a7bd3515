#include "client/plan/table_search.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "kernels/base/status_macros.h"

namespace runahead {

absl::Status TableSearch::Run(const std::vector<SearchItem>& items) {
  left_ = Unfinished(items, table_);
  const size_t all = left_.size();
  while (!left_.empty()) {
    const SearchItem item = left_[0];
    if (item.width > 1 && probes_.empty()) RUNAHEAD_RETURN_IF_ERROR(Probe());
    RUNAHEAD_ASSIGN_OR_RETURN(const MeasuredEntry entry, Measure(item, all));
    PutEntry(table_, item, entry, chain_.workers());
    table_.date = absl::FormatTime("%Y-%m-%d%ET%H:%M:%SZ", clock_.Now(), absl::UTCTimeZone());
    RUNAHEAD_RETURN_IF_ERROR(WritePartitionFile(path_, table_));
    pace_.Finished(item, entry.took);
    found_.push_back({item, entry});
    left_.erase(left_.begin());
    progress_.Finished(item, entry, all - left_.size(), all, pace_.Left(left_, absl::ZeroDuration()));
  }
  return absl::OkStatus();
}

// On the widest chain that is asked for, at the length in the middle of those that it is asked for at.
absl::Status TableSearch::Probe() {
  const auto narrower = [](const SearchItem& a, const SearchItem& b) { return a.width < b.width; };
  const int width = std::max_element(left_.begin(), left_.end(), narrower)->width;
  std::vector<int64_t> lengths;
  for (const SearchItem& item : left_) {
    if (item.width == width) lengths.push_back(item.tokens);
  }
  std::sort(lengths.begin(), lengths.end());
  const SearchItem item{lengths[(lengths.size() - 1) / 2], width};
  const absl::Time began = clock_.Now();
  int64_t runs = 0;
  const ChainTimer timer = [&](absl::Span<const int64_t> parts) {
    progress_.ShowProbe(item, ++runs);
    return chain_.time(parts);
  };
  auto probes = TimeProbes(ProbePartitions(table_.entries, item.tokens, width), timer, clock_, options_);
  progress_.Clear();
  RUNAHEAD_RETURN_IF_ERROR(probes.status());
  probes_ = *std::move(probes);
  progress_.Probed(item, runs, clock_.Now() - began);
  return absl::OkStatus();
}

absl::StatusOr<MeasuredEntry> TableSearch::Measure(const SearchItem& item, size_t all) {
  const absl::Time began = clock_.Now();
  int64_t runs = 0;
  const ChainTimer timer = [&](absl::Span<const int64_t> parts) {
    progress_.Show(item, ++runs, all - left_.size() + 1, all, pace_.Left(left_, clock_.Now() - began));
    return chain_.time(parts);
  };
  auto entry = MeasureEntry(item.tokens, item.width, {table_.entries, probes_}, timer, clock_, options_);
  progress_.Clear();
  return entry;
}

std::string TableSearch::Json() const {
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const Found& found : found_) {
    entries.push_back({{"width", found.item.width},
                       {"tokens", found.item.tokens},
                       {"parts", found.entry.parts},
                       {"measured_ttft_s", found.entry.ttft_s},
                       {"spread_s", found.entry.spread_s},
                       {"partitions", found.entry.partitions},
                       {"runs", found.entry.runs},
                       {"took_s", absl::ToDoubleSeconds(found.entry.took)},
                       {"end", std::string(SearchEndName(found.entry.end))}});
  }
  return nlohmann::ordered_json{
      {"table", path_}, {"model", table_.model}, {"dtype", table_.dtype}, {"entries", std::move(entries)}}
      .dump();
}

}  // namespace runahead
