#include "scheduler/partition/simulated_search.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/status_macros.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

// Steps of the simulator, a few nanoseconds each, that a search may take: some five seconds. Only models of hundreds of
// layers on wide chains come near it.
constexpr int64_t kMaxSteps = 1'000'000'000;

int64_t MaxEvaluations(const CostModel& model, int width) {
  int64_t steps = std::max<int64_t>(1, model.layers * width * width / 2);
  if (!model.buses.empty()) steps *= 16 * width;  // SimulateOnBuses
  return std::clamp<int64_t>(kMaxSteps / steps, 1000, SearchOptions().max_evaluations);
}

// In proportion to the workers' speeds: even for equal ones.
std::vector<int64_t> PartsBySpeed(const CostModel& model, int64_t tokens, int width) {
  std::vector<double> speeds(width);
  for (int i = 0; i < width; ++i) speeds[i] = 1 / model.worker_factors[i];
  const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  for (double& speed : speeds) speed /= sum;
  return RoundParts(tokens, speeds);
}

}  // namespace

absl::StatusOr<SearchResult> SearchSimulated(const CostModel& model, int64_t tokens, int width, bool thorough) {
  RUNAHEAD_RETURN_IF_ERROR(EvenParts(tokens, width).status());
  RUNAHEAD_RETURN_IF_ERROR(CheckCostModel(model, width));
  SearchOptions options;
  options.max_evaluations = MaxEvaluations(model, width);
  options.thorough = thorough;
  if (!thorough) options.first_stride = std::max<int64_t>(1, tokens / width / 4);
  if (!model.worker_factors.empty()) options.seeds = {PartsBySpeed(model, tokens, width)};
  const auto seconds = [&model](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
    RUNAHEAD_ASSIGN_OR_RETURN(const SimulatedRun run, SimulateChain(model, Schedule::kKvr, parts));
    return run.ttft_s;
  };
  return SearchPartition(tokens, width, ObjectiveOf(seconds), options);
}

}  // namespace runahead
