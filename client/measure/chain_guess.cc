#include "client/measure/chain_guess.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/partition_search.h"

namespace runahead {
namespace {

// The times do not say how many layers share them. So many make a chain's fill as short as that of any real model.
constexpr int64_t kLayers = 32;

}  // namespace

std::optional<CostModel> CostOfSingles(absl::Span<const PartitionFileEntry> entries) {
  std::vector<TimedRun> runs;
  for (const PartitionFileEntry& entry : entries) {
    if (entry.width == 1 && entry.measured_ttft_s) {
      runs.push_back({Schedule::kKvr, {entry.tokens}, *entry.measured_ttft_s});
    }
  }
  if (runs.size() < kLeastSingles) return std::nullopt;
  CostModel start;
  start.layers = kLayers;
  start.causal_skip = true;
  start.receive_ahead_layers = kRunaheadReceiveAhead;
  const absl::StatusOr<CostFit> fit = FitCostModel(start, runs, {});
  if (!fit.ok()) return std::nullopt;
  return fit->model;
}

std::vector<int64_t> GuessParts(const CostModel& model, int64_t tokens, int width) {
  SearchOptions options;
  options.last_stride = std::max<int64_t>(1, tokens / 1024);
  options.thorough = width == 2;
  const auto seconds = [&](absl::Span<const int64_t> parts) { return PredictSeconds(model, parts); };
  const auto found = SearchPartition(tokens, width, ObjectiveOf(seconds), options);
  RUNAHEAD_CHECK(found.ok());
  return found->parts;
}

double PredictSeconds(const CostModel& model, absl::Span<const int64_t> parts) {
  const auto run = SimulateChain(model, Schedule::kKvr, parts);
  RUNAHEAD_CHECK(run.ok());
  return run->ttft_s;
}

}  // namespace runahead
