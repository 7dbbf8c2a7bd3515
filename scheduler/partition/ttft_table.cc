#include "scheduler/partition/ttft_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace runahead {

absl::StatusOr<TtftTable> TtftTable::Create(const std::vector<TtftEntry>& entries) {
  TtftTable table;
  for (size_t i = 0; i < entries.size(); ++i) {
    const TtftEntry& entry = entries[i];
    const auto refuse = [&](auto... what) {
      return absl::InvalidArgumentError(absl::StrCat("entries[", i, "]: ", what...));
    };
    if (entry.width < 1) return refuse("width ", entry.width, " is not at least 1");
    if (entry.tokens < 1) return refuse("tokens ", entry.tokens, " is not at least 1");
    if (!std::isfinite(entry.seconds) || entry.seconds <= 0) return refuse("seconds ", entry.seconds, " is no time");
    if (!table.by_width_[entry.width].emplace(entry.tokens, entry.seconds).second) {
      return refuse("a second one for width ", entry.width, " and ", entry.tokens, " tokens");
    }
  }
  return table;
}

std::vector<int> TtftTable::widths() const {
  std::vector<int> widths;
  for (const auto& [width, times] : by_width_) widths.push_back(width);
  return widths;
}

double TtftTable::Start(const Times& times) {
  if (times.size() < 2) return 0;
  const auto shortest = times.begin(), second = std::next(shortest);
  const double per_token = (second->second - shortest->second) / static_cast<double>(second->first - shortest->first);
  return std::clamp(shortest->second - per_token * static_cast<double>(shortest->first), 0.0, shortest->second);
}

double TtftTable::Seconds(int64_t tokens, int width) const {
  const Times& times = by_width_.at(width);
  const auto above = times.lower_bound(tokens);
  if (above == times.begin()) return above->second;
  const auto below = std::prev(above);
  const double n0 = static_cast<double>(below->first), n = static_cast<double>(tokens);
  if (above != times.end()) {
    const double n1 = static_cast<double>(above->first), weight = (n - n0) / (n1 - n0), start = Start(times);
    const double from = (below->second - start) / n0, to = (above->second - start) / n1;  // a token
    if (to > from) return start + n * (from + weight * (to - from));
    return below->second + weight * (above->second - below->second);
  }
  const double per_token = below->second / n0;
  double growth = 0;
  if (below != times.begin()) {
    const auto before = std::prev(below);
    const double m0 = static_cast<double>(before->first);
    growth = std::max(0.0, (per_token - before->second / m0) / (n0 - m0));
  }
  return n * (per_token + growth * (n - n0));
}

double TtftTable::SecondsOfTokens(int64_t tokens, int width) const {
  const Times& times = by_width_.at(width);
  const auto& [shortest, seconds] = *times.begin();
  const double start = Start(times);
  if (tokens >= shortest) return Seconds(tokens, width) - start;
  return (seconds - start) * static_cast<double>(tokens) / static_cast<double>(shortest);
}

}  // namespace runahead
