#include "scheduler/partition/partition_table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/extrapolation.h"
#include "scheduler/partition/rest_of_prompt.h"

namespace runahead {
namespace {

// Fractions in a table are printed with three decimals or more: a chain of a few workers stays within this.
constexpr double kSumTolerance = 1e-3;

// A length tells how to cut where the time to the next one rises by at least so much of what the tokens do. Short
// prompts start kernels or read the weights, whoever has which tokens: what a search found there is chance.
constexpr double kTellingRise = 0.5;

absl::Status CheckWidth(int64_t tokens, int width) {
  if (width < 1) return absl::InvalidArgumentError(absl::StrCat("width: ", width, " is not at least 1"));
  if (tokens < width) {
    return absl::InvalidArgumentError(
        absl::StrCat("width: ", width, " workers need at least as many tokens; the prompt has ", tokens));
  }
  return absl::OkStatus();
}

// "entries[i]" stands before the error where the entry is known.
absl::Status CheckEntry(const PartitionEntry& entry) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWidth(entry.tokens, entry.width));
  if (entry.fractions.size() != static_cast<size_t>(entry.width)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fractions: ", entry.fractions.size(), " given, width ", entry.width, " needs as many"));
  }
  double sum = 0;
  for (double fraction : entry.fractions) {
    if (!(fraction > 0) || !std::isfinite(fraction)) {
      return absl::InvalidArgumentError(absl::StrCat("fractions: ", fraction, " is not above 0"));
    }
    sum += fraction;
  }
  if (std::abs(sum - 1) > kSumTolerance) {
    return absl::InvalidArgumentError(absl::StrCat("fractions: they add up to ", sum, ", not to 1"));
  }
  if (!std::isfinite(entry.ttft_s) || entry.ttft_s < 0) {
    return absl::InvalidArgumentError(absl::StrCat("ttft_s: ", entry.ttft_s, " is no time"));
  }
  return absl::OkStatus();
}

// `outermost` is an iterator that goes from the end of the table that `tokens` lies beyond towards its inside.
template <typename Iterator>
std::pair<std::vector<double>, PartitionSource> Beyond(Iterator outermost, size_t lengths, int64_t tokens) {
  if (lengths < 3) return {outermost->second, PartitionSource::kClamped};
  const auto searched = [](Iterator node) { return SearchedLength{node->first, node->second}; };
  return {ExtrapolateFractions(searched(std::next(outermost, 2)), searched(std::next(outermost)), searched(outermost),
                               tokens),
          PartitionSource::kExtrapolated};
}

// Hands out `total` by largest remainder, the earlier part first among equals.
std::vector<int64_t> ByLargestRemainder(int64_t total, absl::Span<const double> fractions) {
  const size_t width = fractions.size();
  std::vector<int64_t> parts(width);
  std::vector<double> remainders(width);
  int64_t left = total;
  for (size_t i = 0; i < width; ++i) {
    const double exact = fractions[i] * static_cast<double>(total);
    // Never more than is left: rounding errors of the fractions must not push the sum above the total.
    parts[i] = std::min(static_cast<int64_t>(std::floor(exact)), left);
    remainders[i] = exact - static_cast<double>(parts[i]);
    left -= parts[i];
  }
  std::vector<size_t> order(width);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  for (size_t i = 0; left > 0; i = (i + 1) % width, --left) ++parts[order[i]];
  return parts;
}

}  // namespace

absl::StatusOr<PartitionTable> PartitionTable::Create(std::vector<PartitionEntry> entries, int64_t block) {
  if (block < 1) return absl::InvalidArgumentError(absl::StrCat("block: ", block, " is not at least 1"));
  PartitionTable table;
  table.block_ = block;
  std::vector<TtftEntry> times;
  for (size_t i = 0; i < entries.size(); ++i) {
    PartitionEntry& entry = entries[i];
    if (absl::Status status = CheckEntry(entry); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("entries[", i, "]: ", status.message()));
    }
    if (entry.ttft_s > 0) times.push_back({entry.width, entry.tokens, entry.ttft_s});
    const double sum = std::accumulate(entry.fractions.begin(), entry.fractions.end(), 0.0);
    for (double& fraction : entry.fractions) fraction /= sum;
    if (!table.by_width_[entry.width].emplace(entry.tokens, std::move(entry.fractions)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("entries[", i, "]: a second entry for width ", entry.width, " and tokens ", entry.tokens));
    }
  }
  RUNAHEAD_ASSIGN_OR_RETURN(table.times_, TtftTable::Create(times));
  return table;
}

std::pair<std::vector<double>, PartitionSource> PartitionTable::Fractions(int64_t tokens, int width) const {
  const auto found = by_width_.find(width);
  if (found == by_width_.end()) return {std::vector<double>(width, 1.0 / width), PartitionSource::kEven};
  const Nodes& nodes = found->second;
  const auto above = nodes.lower_bound(tokens);
  if (above != nodes.end() && above->first == tokens) return {above->second, PartitionSource::kSearched};
  if (above == nodes.begin()) return Beyond(nodes.begin(), nodes.size(), tokens);
  if (above == nodes.end()) return Beyond(nodes.rbegin(), nodes.size(), tokens);
  const auto below = std::prev(above);
  const double weight = static_cast<double>(tokens - below->first) / static_cast<double>(above->first - below->first);
  std::vector<double> fractions(width);
  for (int i = 0; i < width; ++i) fractions[i] = (1 - weight) * below->second[i] + weight * above->second[i];
  return {std::move(fractions), PartitionSource::kInterpolated};
}

absl::StatusOr<Partition> PartitionTable::Lookup(int64_t tokens, int width) const {
  RUNAHEAD_RETURN_IF_ERROR(CheckWidth(tokens, width));
  auto [fractions, source] = Fractions(tokens, width);
  if (source == PartitionSource::kEven) {
    RUNAHEAD_ASSIGN_OR_RETURN(std::vector<int64_t> parts, EvenParts(tokens, width));
    return Partition{std::move(parts), source};
  }
  return Partition{RoundParts(tokens, fractions, source == PartitionSource::kSearched ? 1 : block_), source};
}

absl::StatusOr<std::vector<int64_t>> PartitionTable::PartsBehind(int64_t known, int64_t tokens, int width) const {
  if (known < 0) return absl::InvalidArgumentError(absl::StrCat("known: ", known, " is not at least 0"));
  RUNAHEAD_RETURN_IF_ERROR(CheckWidth(tokens - known, width));
  if (times_.empty()) return EvenParts(tokens - known, width);
  const std::vector<double> shares = SharesOfTime(TellingLength(tokens - known, width), width);
  const auto on_one_s = [&](int64_t of) { return times_.SecondsOfTokens(of, 1); };
  return RoundParts(tokens - known, FractionsOfRest(tokens, known, shares, on_one_s), block_);
}

int64_t PartitionTable::TellingLength(int64_t tokens, int width) const {
  const auto found = by_width_.find(width);
  if (found == by_width_.end() || !times_.knows(width)) return tokens;
  const Nodes& nodes = found->second;
  auto node = nodes.begin();
  for (auto next = std::next(node); next != nodes.end(); node = next++) {
    const double longer = static_cast<double>(next->first) / static_cast<double>(node->first) - 1;
    const double later = times_.Seconds(next->first, width) / times_.Seconds(node->first, width) - 1;
    if (later >= kTellingRise * longer) break;
  }
  return std::max(tokens, node->first);
}

std::vector<double> PartitionTable::SharesOfTime(int64_t tokens, int width) const {
  const auto [fractions, source] = Fractions(tokens, width);
  const double whole_s = times_.SecondsOfTokens(tokens, 1);
  if (source == PartitionSource::kEven || !(whole_s > 0)) return std::vector<double>(width, 1.0 / width);
  std::vector<double> shares;
  double end = 0, before_s = 0;
  for (const double fraction : fractions) {
    end += fraction * static_cast<double>(tokens);
    const double until_s = std::max(before_s, times_.SecondsOfTokens(std::llround(end), 1));  // measured times may fall
    shares.push_back((until_s - before_s) / whole_s);
    before_s = until_s;
  }
  return shares;
}

absl::StatusOr<std::vector<int64_t>> EvenParts(int64_t tokens, int width) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWidth(tokens, width));
  std::vector<int64_t> parts(width, tokens / width);
  for (int i = 0; i < tokens % width; ++i) ++parts[i];
  return parts;
}

std::vector<int64_t> RoundParts(int64_t tokens, absl::Span<const double> fractions, int64_t block) {
  const double shortest = *std::min_element(fractions.begin(), fractions.end()) * static_cast<double>(tokens);
  if (block > 1 && shortest >= static_cast<double>(kBlocksOfLongPart) * static_cast<double>(block)) {
    std::vector<int64_t> parts(fractions.size());
    int64_t begin = 0;
    double end = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      end += fractions[i] * static_cast<double>(tokens);
      const int64_t rounded = std::llround(end / static_cast<double>(block)) * block;
      parts[i] = rounded - begin;
      begin = rounded;
    }
    parts.back() = tokens - begin;
    return parts;
  }
  std::vector<int64_t> parts = ByLargestRemainder(tokens, fractions);
  for (int64_t& part : parts) {
    if (part > 0) continue;
    --*std::max_element(parts.begin(), parts.end());
    part = 1;
  }
  return parts;
}

}  // namespace runahead
