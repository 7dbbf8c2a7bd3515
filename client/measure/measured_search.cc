#include "client/measure/measured_search.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

#include "client/measure/median.h"
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

// Of a probe: enough for a median that no single outlier moves.
constexpr int kProbeRuns = 3;

// A bound for those who give a budget of hours: a level of six workers alone has 3125 partitions.
constexpr int64_t kMaxPartitions = 5000;

// A gain of more standard errors is hardly chance.
constexpr double kRealGain = 2;

// The faster half of `running` so far, at least kFinalists, in their order.
void DropSlower(const std::vector<std::vector<double>>& ratios, std::vector<size_t>& running) {
  const size_t keep = std::max(kFinalists, (running.size() + 1) / 2);
  if (running.size() <= keep) return;
  std::stable_sort(running.begin(), running.end(),
                   [&ratios](size_t a, size_t b) { return MedianOf(ratios[a]) < MedianOf(ratios[b]); });
  running.resize(keep);
  std::sort(running.begin(), running.end());
}

// In units of the reference's time. Of all partitions only `running` were in the last round.
std::vector<SearchSample> SamplesOf(const std::vector<std::vector<double>>& ratios,
                                    const std::vector<size_t>& running) {
  std::vector<SearchSample> samples;
  samples.reserve(ratios.size());
  for (const std::vector<double>& of_one : ratios) samples.push_back({MedianOf(of_one), MedianErrorOf(of_one)});
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
  return gain > kRealGain * found.best.noise_s ? found.parts : centre;
}

// Where to start beside the even split.
absl::StatusOr<std::vector<std::vector<int64_t>>> SeedsOf(int64_t tokens, int width,
                                                          absl::Span<const PartitionFileEntry> searched,
                                                          const std::optional<CostModel>& cost) {
  std::vector<PartitionEntry> neighbours;
  for (const PartitionFileEntry& entry : searched) {
    neighbours.push_back({.width = entry.width, .tokens = entry.tokens, .fractions = entry.fractions});
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<int64_t> interpolated, InterpolateSeed(tokens, width, neighbours));
  std::vector<std::vector<int64_t>> seeds;
  if (!interpolated.empty()) seeds.push_back(std::move(interpolated));
  if (cost) seeds.push_back(GuessParts(*cost, tokens, width));
  return seeds;
}

}  // namespace

MeasuredObjective::MeasuredObjective(const ChainTimer& timer, const Clock& clock, const MeasureOptions& options)
    : timer_(timer), clock_(clock), options_(options), began_(clock.Now()) {}

absl::StatusOr<double> MeasuredObjective::Time(const std::vector<int64_t>& parts) {
  ++runs_;
  RUNAHEAD_ASSIGN_OR_RETURN(const double seconds, timer_(parts));
  times_[parts].push_back(seconds);
  return seconds;
}

// Each round's reference first. Returns how many rounds were complete.
absl::StatusOr<int> MeasuredObjective::RunRounds(absl::Span<const std::vector<int64_t>> partitions,
                                                 std::vector<std::vector<double>>& ratios, std::vector<size_t>& running,
                                                 bool* stopped) {
  for (int round = 0; round < options_.repeats; ++round) {
    const bool must = reference_s_ == 0 && round == 0;
    const auto spent = [&] { return *stopped = !must && took() >= options_.budget; };
    if (round > 0) DropSlower(ratios, running);
    if (spent()) return round;
    RUNAHEAD_ASSIGN_OR_RETURN(const double reference_s, Time(reference_));
    for (const size_t i : running) {
      double seconds = reference_s;
      if (partitions[i] != reference_) {
        if (spent()) return round;
        RUNAHEAD_ASSIGN_OR_RETURN(seconds, Time(partitions[i]));
      }
      ratios[i].push_back(seconds / reference_s);
    }
  }
  return options_.repeats;
}

absl::StatusOr<SearchAnswer> MeasuredObjective::operator()(absl::Span<const std::vector<int64_t>> partitions) {
  const bool first = runs_ == 0;
  if (first) {
    reference_ = partitions[0];
    RUNAHEAD_RETURN_IF_ERROR(Time(reference_).status());
    times_.clear();
  }
  std::vector<std::vector<double>> ratios(partitions.size());
  std::vector<size_t> running(partitions.size());
  std::iota(running.begin(), running.end(), size_t{0});
  SearchAnswer answer;
  RUNAHEAD_ASSIGN_OR_RETURN(const int complete, RunRounds(partitions, ratios, running, &answer.stop));
  if (complete < (first ? 1 : std::min(kTellingRounds, options_.repeats))) return answer;
  if (first) reference_s_ = MedianOf(times_.at(reference_));
  answer.samples = SamplesOf(ratios, running);
  for (size_t i = 0; i < partitions.size(); ++i) {
    SearchSample& sample = answer.samples[i];
    sample.seconds *= reference_s_;
    sample.noise_s = partitions[i] == reference_ ? MedianErrorOf(times_.at(reference_)) : sample.noise_s * reference_s_;
    samples_[partitions[i]] = sample;
  }
  return answer;
}

absl::StatusOr<std::vector<TimedRun>> TimeProbes(absl::Span<const std::vector<int64_t>> partitions,
                                                 const ChainTimer& timer, const Clock& clock,
                                                 const MeasureOptions& options) {
  const absl::Time until = clock.Now() + options.budget;
  std::vector<std::vector<double>> times(partitions.size());
  std::vector<bool> fits(partitions.size(), true);
  for (int round = 0; round <= std::min(kProbeRuns, options.repeats); ++round) {
    const bool warms_up = round == 0;
    for (size_t i = 0; i < (warms_up ? 1 : partitions.size()); ++i) {
      if (!fits[i] || clock.Now() >= until) continue;
      const absl::StatusOr<double> seconds = timer(partitions[i]);
      fits[i] = !absl::IsOutOfRange(seconds.status());
      if (!fits[i]) continue;
      RUNAHEAD_RETURN_IF_ERROR(seconds.status());
      if (!warms_up) times[i].push_back(*seconds);
    }
  }
  std::vector<TimedRun> probes;
  for (size_t i = 0; i < partitions.size(); ++i) {
    if (!times[i].empty()) probes.push_back({Schedule::kKvr, partitions[i], MedianOf(times[i])});
  }
  return probes;
}

absl::StatusOr<MeasuredEntry> MeasureEntry(int64_t tokens, int width, const ChainKnowledge& known,
                                           const ChainTimer& timer, const Clock& clock, const MeasureOptions& options) {
  SearchOptions search;
  search.thorough = false;
  search.last_stride = std::max<int64_t>(1, tokens / kStridesInTokens);
  search.max_evaluations = kMaxPartitions;
  search.around_even = true;
  const std::optional<CostModel> cost = width > 1 ? CostOfChains(options.shape, known) : std::nullopt;
  if (width > 1) {
    RUNAHEAD_ASSIGN_OR_RETURN(search.seeds, SeedsOf(tokens, width, known.searched, cost));
  }
  MeasuredObjective objective(timer, clock, options);
  RUNAHEAD_ASSIGN_OR_RETURN(const SearchResult found, SearchPartition(tokens, width, std::ref(objective), search));
  MeasuredEntry entry;
  entry.parts = SettledParts(found, objective);
  const std::vector<double>& times = objective.times(entry.parts);
  entry.ttft_s = MedianOf(times);
  entry.spread_s = (*std::max_element(times.begin(), times.end()) - *std::min_element(times.begin(), times.end())) / 2;
  if (cost) entry.predicted_s = PredictSeconds(*cost, entry.parts);
  entry.partitions = found.evaluations;
  entry.runs = objective.runs();
  entry.took = objective.took();
  entry.end = found.end;
  return entry;
}

}  // namespace runahead
