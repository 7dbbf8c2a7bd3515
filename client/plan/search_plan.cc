#include "client/plan/search_plan.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

void SortUnique(std::vector<int32_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

bool IsOf(const PartitionFileEntry& entry, const SearchItem& item) {
  return entry.tokens == item.tokens && entry.width == item.width;
}

absl::Status Differs(const std::string& path, const char* what, const std::string& theirs, const std::string& ours) {
  const std::string of = theirs.empty() ? absl::StrCat("does not say its ", what)
                                        : absl::StrCat("was measured with ", what, " \"", theirs, "\"");
  return absl::FailedPreconditionError(absl::StrCat(path, ": the table ", of, ", and this router serves \"", ours,
                                                    "\": give another file with -o, or --force to start anew"));
}

}  // namespace

std::vector<SearchItem> ItemsOf(std::vector<int32_t> tokens, std::vector<int32_t> widths) {
  SortUnique(tokens);
  SortUnique(widths);
  std::vector<SearchItem> items;
  for (const int32_t length : tokens) {
    for (const int32_t width : widths) items.push_back({length, width});
  }
  std::stable_partition(items.begin(), items.end(), [](const SearchItem& item) { return item.width == 1; });
  return items;
}

std::vector<SearchItem> Unfinished(const std::vector<SearchItem>& items, const PartitionFile& table) {
  std::vector<SearchItem> left;
  for (const SearchItem& item : items) {
    const auto has = [&item](const PartitionFileEntry& entry) { return IsOf(entry, item) && entry.measured_ttft_s; };
    if (std::none_of(table.entries.begin(), table.entries.end(), has)) left.push_back(item);
  }
  return left;
}

absl::Status CheckResumable(const PartitionFile& table, const std::string& path, const std::string& model,
                            const std::string& dtype) {
  if (!absl::EqualsIgnoreCase(table.model, model)) return Differs(path, "model", table.model, model);
  if (table.dtype != dtype) return Differs(path, "dtype", table.dtype, dtype);
  if (table.schedule != "kvr") return Differs(path, "schedule", table.schedule, "kvr");
  return absl::OkStatus();
}

void PutEntry(PartitionFile& table, const SearchItem& item, const MeasuredEntry& found,
              const std::vector<std::string>& workers) {
  const auto same = [&item](const PartitionFileEntry& entry) { return IsOf(entry, item); };
  table.entries.erase(std::remove_if(table.entries.begin(), table.entries.end(), same), table.entries.end());
  PartitionFileEntry entry;
  entry.width = item.width;
  entry.tokens = item.tokens;
  for (const int64_t part : found.parts) {
    entry.fractions.push_back(static_cast<double>(part) / static_cast<double>(item.tokens));
  }
  entry.measured_ttft_s = found.ttft_s;
  entry.spread_s = found.spread_s;
  entry.predicted_ttft_s = found.predicted_s;
  table.entries.push_back(std::move(entry));

  if (workers.size() > table.devices.size()) table.devices = workers;
  size_t widest = 0;
  for (const PartitionFileEntry& each : table.entries) widest = std::max(widest, static_cast<size_t>(each.width));
  if (table.devices.size() < widest) table.devices.clear();
}

void SearchPace::Finished(const SearchItem& item, absl::Duration took) {
  (item.width == 1 ? single_ : chain_) = {took, item.tokens};
}

absl::Duration SearchPace::Left(absl::Span<const SearchItem> left, absl::Duration spent) const {
  absl::Duration sum;
  for (size_t i = 0; i < left.size(); ++i) {
    const Kind& kind = left[i].width == 1 ? single_ : chain_;
    absl::Duration expected = budget_;
    if (kind.tokens > 0) {
      expected = std::min(budget_, kind.took * static_cast<double>(left[i].tokens) / static_cast<double>(kind.tokens));
    }
    sum += i == 0 ? std::max(expected - spent, absl::ZeroDuration()) : expected;
  }
  return sum;
}

}  // namespace runahead
