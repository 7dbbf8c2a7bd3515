#include "client/measured_search.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_moves.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

// A level that the budget cuts off tells something when its partitions ran so often; a single run may be an outlier.
constexpr int kTellingRounds = 3;

// So many partitions stay to the last round, if there were so many: all that a search over two workers asks for.
constexpr size_t kFinalists = 4;

// Finer than this share of the tokens, what a move changes is below what runs on one machine differ by.
constexpr int64_t kStridesInTokens = 64;

// A bound for those who give a budget of hours: a level of six workers alone has 3125 partitions.
constexpr int64_t kMaxPartitions = 5000;

// The faster half of `running` so far, at least kFinalists, in their order.
void DropSlower(const std::vector<std::vector<double>>& times, std::vector<size_t>& running) {
  const size_t keep = std::max(kFinalists, (running.size() + 1) / 2);
  if (running.size() <= keep) return;
  std::stable_sort(running.begin(), running.end(),
                   [&times](size_t a, size_t b) { return SampleOf(times[a]).seconds < SampleOf(times[b]).seconds; });
  running.resize(keep);
  std::sort(running.begin(), running.end());
}

// `times` of each partition, of which only `running` were in the last round.
std::vector<SearchSample> SamplesOf(const std::vector<std::vector<double>>& times, const std::vector<size_t>& running) {
  std::vector<SearchSample> samples;
  samples.reserve(times.size());
  for (const std::vector<double>& of_one : times) samples.push_back(SampleOf(of_one));
  double slowest = 0;
  for (const size_t i : running) slowest = std::max(slowest, samples[i].seconds);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!std::binary_search(running.begin(), running.end(), i)) {
      samples[i].seconds = std::max(samples[i].seconds, slowest);
    }
  }
  return samples;
}

// The least of equal medians is faster by chance: where a level was noise, its centre stays unless the gain is real.
std::vector<int64_t> SettledParts(const SearchResult& found, const MeasuredObjective& objective) {
  if (found.end != SearchEnd::kNoise) return found.parts;
  std::vector<int64_t> centre = PartsOf(found.levels.back().centre);
  const double gain = objective.sample(centre).seconds - found.best.seconds;
  return gain > found.best.spread_s ? found.parts : centre;
}

}  // namespace

SearchSample SampleOf(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const size_t half = times.size() / 2;
  const double median = times.size() % 2 == 1 ? times[half] : (times[half - 1] + times[half]) / 2;
  return {median, (times.back() - times.front()) / 2};
}

MeasuredObjective::MeasuredObjective(const ChainTimer& timer, const Clock& clock, const MeasureOptions& options)
    : timer_(timer), clock_(clock), options_(options), began_(clock.Now()) {}

absl::StatusOr<double> MeasuredObjective::Time(absl::Span<const int64_t> parts) {
  ++runs_;
  return timer_(parts);
}

absl::StatusOr<SearchAnswer> MeasuredObjective::operator()(absl::Span<const std::vector<int64_t>> partitions) {
  const bool first = runs_ == 0;
  if (first) RUNAHEAD_RETURN_IF_ERROR(Time(partitions[0]).status());
  std::vector<std::vector<double>> times(partitions.size());
  std::vector<size_t> running(partitions.size());
  std::iota(running.begin(), running.end(), size_t{0});
  SearchAnswer answer;
  int rounds = 0;
  for (; rounds < options_.repeats && !answer.stop; ++rounds) {
    if (rounds > 0) DropSlower(times, running);
    for (const size_t i : running) {
      answer.stop = took() >= options_.budget && !(first && rounds == 0);
      if (answer.stop) break;
      RUNAHEAD_ASSIGN_OR_RETURN(const double seconds, Time(partitions[i]));
      times[i].push_back(seconds);
    }
  }
  const int complete = answer.stop ? rounds - 1 : rounds;
  if (complete < (first ? 1 : std::min(kTellingRounds, options_.repeats))) return answer;
  answer.samples = SamplesOf(times, running);
  for (size_t i = 0; i < partitions.size(); ++i) samples_[partitions[i]] = answer.samples[i];
  return answer;
}

absl::StatusOr<MeasuredEntry> MeasureEntry(int64_t tokens, int width, absl::Span<const PartitionFileEntry> searched,
                                           const ChainTimer& timer, const Clock& clock, const MeasureOptions& options) {
  SearchOptions search;
  search.thorough = false;
  search.last_stride = std::max<int64_t>(1, tokens / kStridesInTokens);
  search.max_evaluations = kMaxPartitions;
  std::vector<PartitionEntry> neighbours;
  for (const PartitionFileEntry& entry : searched) {
    neighbours.push_back({.width = entry.width, .tokens = entry.tokens, .fractions = entry.fractions});
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<int64_t> seed, InterpolateSeed(tokens, width, neighbours));
  if (!seed.empty() && width > 1) search.seeds.push_back(std::move(seed));
  MeasuredObjective objective(timer, clock, options);
  RUNAHEAD_ASSIGN_OR_RETURN(const SearchResult found, SearchPartition(tokens, width, std::ref(objective), search));
  std::vector<int64_t> parts = SettledParts(found, objective);
  const SearchSample sample = objective.sample(parts);
  return MeasuredEntry{std::move(parts), sample, found.evaluations, objective.runs(), objective.took(), found.end};
}

}  // namespace runahead
