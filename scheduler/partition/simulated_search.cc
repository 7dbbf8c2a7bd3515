#include "scheduler/partition/simulated_search.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_moves.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

// Steps of the simulator, a few nanoseconds each, that a search may take: some five seconds. Models of hundreds of
// layers on wide chains come near it, and wide chains over buses.
constexpr int64_t kMaxSteps = 1'000'000'000;

// A thorough search spends one share of its steps on the paper's search, one on the model without its buses, and the
// rest on its own.
constexpr int64_t kShares = 4;

int64_t AffordableEvaluations(const CostModel& model, int width) {
  int64_t steps = std::max<int64_t>(1, model.layers * width * width / 2);
  if (!model.buses.empty()) steps *= 5 * width;  // SimulateOnBuses, as measured
  return std::clamp<int64_t>(kMaxSteps / steps, kLeastSimulations, SearchOptions().max_evaluations);
}

// In proportion to the workers' speeds: even for equal ones.
std::vector<int64_t> PartsBySpeed(const CostModel& model, int64_t tokens, int width) {
  std::vector<double> speeds(width);
  for (int i = 0; i < width; ++i) speeds[i] = 1 / model.worker_factors[i];
  const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  for (double& speed : speeds) speed /= sum;
  return RoundParts(tokens, speeds);
}

absl::StatusOr<SearchResult> SearchModel(const CostModel& model, int64_t tokens, int width, const KnownBeginning& known,
                                         const SearchOptions& options) {
  const auto seconds = [&](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
    RUNAHEAD_ASSIGN_OR_RETURN(const SimulatedRun run, SimulateChain(model, Schedule::kKvr, parts, known));
    return run.ttft_s;
  };
  return SearchPartition(tokens, width, ObjectiveOf(seconds), options);
}

absl::StatusOr<SearchResult> PaperSearch(const CostModel& model, int64_t tokens, int width, const KnownBeginning& known,
                                         int64_t max_evaluations) {
  SearchOptions options;
  options.max_evaluations = max_evaluations;
  options.thorough = false;
  options.first_stride = std::max<int64_t>(1, tokens / width / 4);
  if (!model.worker_factors.empty()) options.seeds = {PartsBySpeed(model, tokens, width)};
  return SearchModel(model, tokens, width, known, options);
}

}  // namespace

std::vector<std::vector<int64_t>> CornerPartitions(int64_t tokens, int width) {
  std::vector<std::vector<int64_t>> corners;
  if (width == 1) return corners;
  for (const PartBounds& narrow : NarrowStarts(tokens, width)) {
    std::vector<int64_t> parts = PartsOf(narrow);
    corners.push_back(parts);
    std::reverse(parts.begin(), parts.end());
    corners.push_back(std::move(parts));
  }
  for (int heavy = 1; heavy + 1 < width; ++heavy) {
    corners.emplace_back(width, 1);
    corners.back()[heavy] = tokens - width + 1;
  }
  return corners;
}

absl::StatusOr<SearchResult> SearchSimulated(const CostModel& model, int64_t tokens, int width, bool thorough,
                                             int64_t max_evaluations, const KnownBeginning& known) {
  RUNAHEAD_RETURN_IF_ERROR(EvenParts(tokens, width).status());
  RUNAHEAD_RETURN_IF_ERROR(CheckCostModel(model, width));
  if (max_evaluations != 0 && max_evaluations < kLeastSimulations) {
    return absl::InvalidArgumentError(absl::StrCat("max_evaluations: ", max_evaluations, " is below what can be"));
  }
  const int64_t most = max_evaluations == 0 ? AffordableEvaluations(model, width) : max_evaluations;
  if (!thorough || width == 1 || width > kMaxSearchWidth) return PaperSearch(model, tokens, width, known, most);

  SearchOptions options;
  options.first_stride = FirstStride(tokens, width);
  options.seeds = CornerPartitions(tokens, width);
  if (!model.worker_factors.empty()) options.seeds.push_back(PartsBySpeed(model, tokens, width));
  if (!model.buses.empty()) {
    // It costs little beside a simulation with buses, and shows where links alone would have the boundaries.
    CostModel free = model;
    free.buses.clear();
    SearchOptions without = options;
    without.max_evaluations = std::max(AffordableEvaluations(free, width) / kShares, kLeastSimulations);
    RUNAHEAD_ASSIGN_OR_RETURN(SearchResult found, SearchModel(free, tokens, width, known, without));
    options.seeds.push_back(std::move(found.parts));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(SearchResult paper, PaperSearch(model, tokens, width, known, most / kShares));
  options.seeds.push_back(std::move(paper.parts));
  options.max_evaluations = most - paper.evaluations;
  RUNAHEAD_ASSIGN_OR_RETURN(SearchResult found, SearchModel(model, tokens, width, known, options));
  found.evaluations += paper.evaluations;
  return found;
}

}  // namespace runahead
