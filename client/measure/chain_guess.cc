#include "client/measure/chain_guess.h"

#include <algorithm>
#include <limits>
#include <set>

#include "client/measure/solve_rising.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/partition_search.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

constexpr int64_t kNominalLayers = 32;

// Some second of simulation.
constexpr int64_t kMaxGuesses = 60000;

// The shortest single prompt that is timed for its own sake.
constexpr int64_t kShortestProbe = 16;

// What a link or company must add to a run to be told from what times differ by anyhow.
constexpr double kLeastSeenDelay = 0.05;

// Of the prompt's KV over one link, in seconds: from what nobody sees to what nobody waits for.
constexpr double kLeastTransfer = 1e-6;
constexpr double kMostTransfer = 1e6;
constexpr double kMostCompany = 10;

std::vector<TimedRun> SinglesOf(const ChainKnowledge& known) {
  std::vector<TimedRun> runs;
  for (const PartitionFileEntry& entry : known.searched) {
    if (entry.width == 1 && entry.measured_ttft_s) {
      runs.push_back({Schedule::kKvr, {entry.tokens}, *entry.measured_ttft_s});
    }
  }
  for (const TimedRun& probe : known.probes) {
    if (probe.parts.size() == 1) runs.push_back(probe);
  }
  return runs;
}

const TimedRun* ProbeWith(const ChainKnowledge& known, const std::vector<int64_t>& parts) {
  const auto is = [&parts](const TimedRun& probe) { return probe.parts == parts; };
  const auto found = std::find_if(known.probes.begin(), known.probes.end(), is);
  return found == known.probes.end() ? nullptr : &*found;
}

// `link` as slow as it must be for the probe to take what it took. The links behind it are known.
void FitLink(const TimedRun& probe, int64_t tokens, int link, CostModel* model) {
  double& rate = model->links[link].bytes_per_s;
  if (probe.seconds <= (1 + kLeastSeenDelay) * PredictSeconds(*model, probe.parts)) return;
  const double bytes = model->kv_bytes_per_token * static_cast<double>(tokens);
  SolveRising(kLeastTransfer, kMostTransfer, probe.seconds, [&](double seconds) {
    rate = bytes / seconds;
    return PredictSeconds(*model, probe.parts);
  });
}

}  // namespace

CostModel UnknownShape() {
  CostModel shape;
  shape.layers = kNominalLayers;
  shape.kv_bytes_per_token = 1;
  return shape;
}

std::vector<int64_t> HeavyParts(int64_t tokens, int heavy, int width) {
  std::vector<int64_t> parts(width, 1);
  parts[heavy] = tokens - width + 1;
  return parts;
}

std::vector<std::vector<int64_t>> ProbePartitions(absl::Span<const PartitionFileEntry> searched, int64_t tokens,
                                                  int width) {
  std::set<int64_t> timed;
  for (const TimedRun& single : SinglesOf({searched, {}})) timed.insert(single.parts[0]);
  std::vector<std::vector<int64_t>> probes;
  for (const int64_t share : {8, 4, 2, 1}) {
    if (timed.size() >= kLeastSingles) break;
    const int64_t length = std::min(tokens, std::max(kShortestProbe, tokens / share));
    if (timed.insert(length).second) probes.push_back({length});
  }
  probes.push_back(EvenParts(tokens, width).value());
  for (int link = 0; link + 1 < width; ++link) probes.push_back(HeavyParts(tokens, link, width));
  return probes;
}

std::optional<CostModel> CostOfChains(const CostModel& shape, const ChainKnowledge& known) {
  const std::vector<TimedRun> singles = SinglesOf(known);
  std::set<int64_t> lengths;
  for (const TimedRun& single : singles) lengths.insert(single.parts[0]);
  if (lengths.size() < kLeastSingles) return std::nullopt;
  CostModel start = shape;
  start.causal_skip = true;
  start.receive_ahead_layers = kRunaheadReceiveAhead;
  absl::StatusOr<CostFit> fit = FitCostModel(start, singles, {});
  if (!fit.ok()) return std::nullopt;
  CostModel model = fit->model;

  const auto chain = std::find_if(known.probes.begin(), known.probes.end(),
                                  [](const TimedRun& probe) { return probe.parts.size() > 1; });
  if (chain == known.probes.end()) return model;
  const int width = static_cast<int>(chain->parts.size());
  int64_t tokens = 0;
  for (const int64_t part : chain->parts) tokens += part;
  model.links.assign(width - 1, {});
  for (int link = width - 2; link >= 0; --link) {
    if (const TimedRun* probe = ProbeWith(known, HeavyParts(tokens, link, width))) {
      FitLink(*probe, tokens, link, &model);
    }
  }
  // What even parts take beyond that is what workers cost each other.
  const TimedRun* even = ProbeWith(known, EvenParts(tokens, width).value());
  if (even != nullptr && even->seconds > (1 + kLeastSeenDelay) * PredictSeconds(model, even->parts)) {
    SolveRising(1, kMostCompany, even->seconds, [&](double factor) {
      model.together_factor = factor;
      return PredictSeconds(model, even->parts);
    });
  }
  return model;
}

std::vector<int64_t> GuessParts(const CostModel& model, int64_t tokens, int width) {
  SearchOptions options;
  options.last_stride = std::max<int64_t>(1, tokens / 1024);
  options.max_evaluations = kMaxGuesses;
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
