#include "scheduler/partition/partition_search.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_moves.h"

namespace runahead {
namespace {

// Widest chain whose grid of 5^(p-1) points a level scans whole.
constexpr size_t kMaxGridWidth = 6;

// A level of measurements tells nothing when three quarters of it are no more than so many standard errors above its
// best: the least of a handful of equal candidates is one or two below the others by chance alone.
constexpr double kNoiseErrors = 2;

// Seeds are taken to be so many times nearer to the best than even parts.
constexpr int64_t kSeedsShorten = 4;

// A thorough search tries so many partitions for each worker, and goes on from the best few, in coarse steps only.
constexpr int kScatteredPerWorker = 16;
constexpr size_t kOtherStarts = 6;
constexpr int64_t kCoarse = 16;

enum class Scan { kSides, kGrid, kMoves };

std::vector<PartBounds> Candidates(Scan scan, const PartBounds& centre, int64_t stride) {
  if (scan == Scan::kGrid) return GridAround(centre, stride);
  return scan == Scan::kMoves ? MovesAround(centre, stride) : SidesAround(centre, stride);
}

class Search {
 public:
  Search(const SearchObjective& objective, const SearchOptions& options) : objective_(objective), options_(options) {}

  // From the best of `starts`, level after level.
  absl::Status Run(const std::vector<PartBounds>& starts, int64_t first) {
    RUNAHEAD_RETURN_IF_ERROR(Evaluate(starts));
    if (evaluations_ == 0) return absl::DeadlineExceededError("the search was stopped before its first sample");
    here_ = best_ = BestOf(starts, starts[0]);
    const size_t width = starts[0].size() - 1;
    if (width == 1) return absl::OkStatus();
    const Scan scan = width == 2 ? Scan::kSides : width <= kMaxGridWidth ? Scan::kGrid : Scan::kMoves;
    if (options_.around_even && starts.size() > 1) return AroundBoth(scan, starts, first);
    return Descend(scan, first, options_.last_stride);
  }

  // Other basins, coarsely, and all strides once more from the best of all.
  absl::Status LookElsewhere(const std::vector<PartBounds>& seeds, int64_t tokens, int width, int64_t first) {
    const Scan scan = width == 2 ? Scan::kSides : Scan::kMoves;
    std::vector<PartBounds> starts = NarrowStarts(tokens, width);
    starts.insert(starts.end(), seeds.begin(), seeds.end());
    for (PartBounds& start : ScatteredStarts(tokens, width, kScatteredPerWorker * width)) {
      starts.push_back(std::move(start));
    }
    if (!end_) RUNAHEAD_RETURN_IF_ERROR(Evaluate(starts));
    if (end_) return absl::OkStatus();
    std::stable_sort(starts.begin(), starts.end(), [this](const PartBounds& a, const PartBounds& b) {
      return known_.at(a).seconds < known_.at(b).seconds;
    });
    starts.resize(std::min(starts.size(), kOtherStarts));
    for (const PartBounds& start : starts) {
      here_ = start;
      RUNAHEAD_RETURN_IF_ERROR(Descend(scan, first, std::max(first / kCoarse, options_.last_stride)));
    }
    here_ = best_;
    return Descend(scan, first, options_.last_stride);
  }

  SearchResult Result() {
    return {PartsOf(best_), known_.at(best_), evaluations_, std::move(levels_), end_.value_or(SearchEnd::kFinished)};
  }

 private:
  // Asks for what is not known yet, within the bound.
  absl::Status Evaluate(const std::vector<PartBounds>& candidates) {
    std::vector<std::vector<int64_t>> asked;
    absl::flat_hash_set<PartBounds> new_ones;
    std::vector<const PartBounds*> bounds;
    for (const PartBounds& candidate : candidates) {
      if (!IsPartition(candidate) || known_.contains(candidate)) continue;
      if (evaluations_ + static_cast<int64_t>(asked.size()) >= options_.max_evaluations) {
        end_ = SearchEnd::kEvaluations;
        break;
      }
      if (!new_ones.insert(candidate).second) continue;
      asked.push_back(PartsOf(candidate));
      bounds.push_back(&candidate);
    }
    if (asked.empty()) return absl::OkStatus();
    RUNAHEAD_ASSIGN_OR_RETURN(const SearchAnswer answer, objective_(asked));
    if (answer.samples.size() > asked.size() || (answer.samples.size() < asked.size() && !answer.stop)) {
      return absl::InternalError(
          absl::StrCat("the objective gave ", answer.samples.size(), " samples for ", asked.size(), " partitions"));
    }
    if (answer.stop) end_ = SearchEnd::kStopped;
    for (size_t i = 0; i < answer.samples.size(); ++i) known_.emplace(*bounds[i], answer.samples[i]);
    evaluations_ += static_cast<int64_t>(answer.samples.size());
    return absl::OkStatus();
  }

  // The fastest of what is known; among equals what is nearest to `centre`, then the first.
  PartBounds BestOf(const std::vector<PartBounds>& candidates, const PartBounds& centre) const {
    const PartBounds* best = nullptr;
    double least = 0;
    for (const PartBounds& candidate : candidates) {
      const auto found = known_.find(candidate);
      if (found == known_.end()) continue;
      const double seconds = found->second.seconds;
      if (best != nullptr &&
          (seconds > least || (seconds == least && Distance(candidate, centre) >= Distance(*best, centre)))) {
        continue;
      }
      best = &candidate;
      least = seconds;
    }
    return best == nullptr ? centre : *best;
  }

  // A level around the best seed, one around even parts (the first start), then on from the better of both.
  absl::Status AroundBoth(Scan scan, const std::vector<PartBounds>& starts, int64_t first) {
    const std::vector<PartBounds> seeds(starts.begin() + 1, starts.end());
    here_ = BestOf(seeds, seeds[0]);
    if (end_ || !known_.contains(here_)) return absl::OkStatus();
    RUNAHEAD_RETURN_IF_ERROR(Level(scan, first));
    const PartBounds by_seed = here_;
    std::optional<SearchEnd> noise_of_seed;
    if (end_ == SearchEnd::kNoise) noise_of_seed = std::exchange(end_, std::nullopt);
    if (end_) return absl::OkStatus();
    const int width = static_cast<int>(starts[0].size()) - 1;
    int64_t stride = std::max(FirstStride(starts[0].back(), width), options_.last_stride);
    here_ = starts[0];
    RUNAHEAD_RETURN_IF_ERROR(Level(scan, stride));
    if (known_.at(by_seed).seconds <= known_.at(here_).seconds) {
      here_ = by_seed;
      stride = first;
      std::swap(levels_.back(), levels_[levels_.size() - 2]);
      if (!end_ || end_ == SearchEnd::kNoise) end_ = noise_of_seed;
    }
    if (stride <= options_.last_stride) return absl::OkStatus();
    return Descend(scan, std::max(stride / 2, options_.last_stride), options_.last_stride);
  }

  absl::Status Descend(Scan scan, int64_t first, int64_t last) {
    for (int64_t stride = first; !end_; stride = std::max(stride / 2, last)) {
      RUNAHEAD_RETURN_IF_ERROR(Level(scan, stride));
      if (stride <= last) break;
    }
    return absl::OkStatus();
  }

  // Scans around the best point, and again while it is found on the rim.
  absl::Status Level(Scan scan, int64_t stride) {
    SearchLevel level{stride, here_, {}, 0, -evaluations_};
    std::vector<PartBounds> candidates;
    int64_t moved = 0;
    do {
      const PartBounds centre = here_;
      candidates = Candidates(scan, centre, stride);
      RUNAHEAD_RETURN_IF_ERROR(Evaluate(candidates));
      here_ = BestOf(candidates, centre);
      moved = FarthestMove(here_, centre);
    } while (!end_ && options_.thorough && moved >= (scan == Scan::kGrid ? kReach * stride : 1));
    level.best = here_;
    level.best_s = known_.at(here_).seconds;
    level.evaluations += evaluations_;
    levels_.push_back(std::move(level));
    if (known_.at(here_).seconds < known_.at(best_).seconds) best_ = here_;
    if (!end_ && IsNoise(candidates)) end_ = SearchEnd::kNoise;
    return absl::OkStatus();
  }

  // The level could as well have been scanned with a die.
  bool IsNoise(const std::vector<PartBounds>& candidates) const {
    const SearchSample& best = known_.at(here_);
    if (best.noise_s <= 0) return false;
    std::vector<double> seconds;
    for (const PartBounds& candidate : candidates) {
      if (const auto found = known_.find(candidate); found != known_.end()) seconds.push_back(found->second.seconds);
    }
    const size_t upper = seconds.size() * 3 / 4;
    std::nth_element(seconds.begin(), seconds.begin() + upper, seconds.end());
    return seconds[upper] - best.seconds <= kNoiseErrors * best.noise_s;
  }

  const SearchObjective& objective_;
  const SearchOptions& options_;
  absl::flat_hash_map<PartBounds, SearchSample> known_;
  PartBounds here_, best_;  // where the search stands, and the fastest of all
  int64_t evaluations_ = 0;
  std::vector<SearchLevel> levels_;
  std::optional<SearchEnd> end_;
};

absl::Status CheckSeed(absl::Span<const int64_t> seed, int64_t tokens, int width) {
  const PartBounds bounds = BoundsOf(seed);
  if (seed.size() == static_cast<size_t>(width) && IsPartition(bounds) && bounds.back() == tokens)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("seeds: one is not ", width, " parts of at least 1 that add up to ", tokens));
}

}  // namespace

SearchObjective ObjectiveOf(std::function<absl::StatusOr<double>(absl::Span<const int64_t> parts)> seconds) {
  return [seconds =
              std::move(seconds)](absl::Span<const std::vector<int64_t>> partitions) -> absl::StatusOr<SearchAnswer> {
    SearchAnswer answer;
    answer.samples.reserve(partitions.size());
    for (const std::vector<int64_t>& parts : partitions) {
      RUNAHEAD_ASSIGN_OR_RETURN(const double value, seconds(parts));
      answer.samples.push_back({value, 0});
    }
    return answer;
  };
}

std::string_view SearchEndName(SearchEnd end) {
  switch (end) {
    case SearchEnd::kFinished:
      return "finished";
    case SearchEnd::kEvaluations:
      return "evaluations";
    case SearchEnd::kStopped:
      return "stopped";
    case SearchEnd::kNoise:
      return "noise";
  }
  return "";
}

int64_t FirstStride(int64_t tokens, int width) {
  int64_t stride = 1;
  while (stride * 2 * 4 * width <= tokens) stride *= 2;
  return stride;
}

absl::StatusOr<SearchResult> SearchPartition(int64_t tokens, int width, const SearchObjective& objective,
                                             const SearchOptions& options) {
  if (width > kMaxSearchWidth) {
    return absl::InvalidArgumentError(absl::StrCat("width: ", width, " is more than ", kMaxSearchWidth));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<int64_t> even, EvenParts(tokens, width));
  if (options.first_stride < 0 || options.last_stride < 1 || options.max_evaluations < 1) {
    return absl::InvalidArgumentError("first_stride, last_stride or max_evaluations: below what can be");
  }
  std::vector<PartBounds> starts = {BoundsOf(even)};
  for (const std::vector<int64_t>& seed : options.seeds) {
    RUNAHEAD_RETURN_IF_ERROR(CheckSeed(seed, tokens, width));
    starts.push_back(BoundsOf(seed));
  }
  int64_t first = options.first_stride;
  if (first == 0) first = FirstStride(tokens, width) / (options.seeds.empty() ? 1 : kSeedsShorten);
  first = std::max(first, options.last_stride);
  Search search(objective, options);
  RUNAHEAD_RETURN_IF_ERROR(search.Run(starts, first));
  if (options.thorough && width > 1) RUNAHEAD_RETURN_IF_ERROR(search.LookElsewhere(starts, tokens, width, first));
  return search.Result();
}

absl::StatusOr<std::vector<int64_t>> InterpolateSeed(int64_t tokens, int width,
                                                     absl::Span<const PartitionEntry> searched) {
  std::vector<PartitionEntry> of_width;
  for (const PartitionEntry& entry : searched) {
    if (entry.width == width) of_width.push_back(entry);
  }
  if (of_width.empty()) return std::vector<int64_t>();
  RUNAHEAD_ASSIGN_OR_RETURN(const PartitionTable table, PartitionTable::Create(std::move(of_width)));
  RUNAHEAD_ASSIGN_OR_RETURN(Partition partition, table.Lookup(tokens, width));
  return std::move(partition.parts);
}

}  // namespace runahead
