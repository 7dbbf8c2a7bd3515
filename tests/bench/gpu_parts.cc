// One card plays each rank of a chain in turn: T(part, prefix). From these times follow the costs of the planner's
// model, and from that what chains of such cards would take. The latter is a prediction and says so.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/partition_search.h"
#include "scheduler/partition/partition_table.h"
#include "tests/bench/gpu_model.h"
#include "tests/bench/gpu_suites.h"
#include "tests/testing/dense_kv.h"

namespace runahead {
namespace {

constexpr int64_t kParts[] = {1024, 2048, 4096, 8192};
constexpr int64_t kPrefixes[] = {0, 2048, 8192, 16384, 24576};
constexpr double kLinkRates[] = {300e9, 50e9};
constexpr double kLinkLatency = 20e-6;  // assumed, for a frame; what NCCL takes is not measured here
// Parts are cut at multiples of this: the kernels' tiles.
constexpr int64_t kPartStride = 64;
constexpr int64_t kEvaluations = 20000;

// A pass over `part` tokens; what comes before them in `kv` is there already, as a rank's is once its frames have come.
absl::StatusOr<DepthTiming> TimePart(const Bench& bench, const BenchModel& model, DenseKv& kv, int64_t part,
                                     OwnedPassMemory& memory, Stream& stream) {
  const ForwardBatch batch = PromptBatch(model.config, part);
  kv.Next(part);
  const std::vector<Work> works = {
      [&] { return EnqueuePass(*model.full, *bench.device, stream, memory, batch, kv).status(); },
      [&] { return EnqueuePass(*model.half, *bench.device, stream, memory, batch, kv).status(); },
  };
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<Timing> timings, TimeInTurn(*bench.device, stream, bench.seconds, works));
  return DepthTiming{timings[0], timings[1], model.config.layers};
}

absl::Status FillLayers(Device& device, const DenseKv& kv, int64_t layers) {
  const std::unique_ptr<Stream> stream = device.NewStream("fill");
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef values, RandomMemory(device, kv.layer(0).size));
  for (int64_t layer = 0; layer < layers; ++layer) {
    RUNAHEAD_RETURN_IF_ERROR(device.Copy(*stream, values, kv.layer(layer)));
  }
  return device.Record(*stream).Wait();
}

absl::StatusOr<std::vector<TimedRun>> TimeParts(const Bench& bench, const BenchModel& model) {
  Device& device = *bench.device;
  const int64_t capacity = bench.Size(*std::max_element(std::begin(kPrefixes), std::end(kPrefixes)), 128) +
                           bench.Size(*std::max_element(std::begin(kParts), std::end(kParts)), 128);
  DenseKv kv(device, *model.full, capacity);
  RUNAHEAD_RETURN_IF_ERROR(FillLayers(device, kv, model.config.layers));
  const std::unique_ptr<Stream> stream = device.NewStream("bench");
  OwnedPassMemory memory(device);
  std::vector<TimedRun> runs;
  for (const int64_t at : kPrefixes) {
    const int64_t prefix = at == 0 ? 0 : bench.Size(at, 128);
    kv.Next(prefix - kv.length());
    kv.Append();
    for (const int64_t size : kParts) {
      const int64_t part = bench.Size(size, 128);
      RUNAHEAD_ASSIGN_OR_RETURN(const DepthTiming depth, TimePart(bench, model, kv, part, memory, *stream));
      bench.report.Add({.suite = "parts",
                        .model = model.config.name,
                        .shape = absl::StrCat("part=", part, " prefix=", prefix),
                        .what = absl::StrCat(kWholeLayers, " layers, scaled"),
                        .value = depth.whole_s() * 1e3,
                        .unit = "ms",
                        .timing = depth.full,
                        .numbers = {{"layer_ms", depth.layer().median_s * 1e3}}});
      // As the last of two workers of which the first takes no time. A part without a prefix lends it one token.
      const int64_t before = std::max<int64_t>(prefix, 1);
      runs.push_back({Schedule::kKvr, {before, prefix + part - before}, depth.whole_s(), 0});
    }
  }
  return runs;
}

absl::StatusOr<CostFit> Fit(const ModelConfig& config, const AttentionShape& shape, const std::vector<TimedRun>& runs) {
  constexpr double kNoTime = 1e-9;
  CostModel start;
  start.layers = kWholeLayers;
  start.kv_bytes_per_token = static_cast<double>(kWholeLayers * shape.kv_row_bytes());
  start.causal_skip = true;
  start.receive_ahead_layers = kRunaheadReceiveAhead;
  start.qkv_share = 2.0 * static_cast<double>(config.hidden * (config.heads * config.head_dim + 2 * config.kv_dim())) /
                    ProductFlops(config, 1);
  start.worker_factors = {kNoTime, 1};
  RUNAHEAD_ASSIGN_OR_RETURN(CostFit fit, FitCostModel(start, runs, {}));
  fit.model.worker_factors.clear();
  return fit;
}

void SayFit(const Bench& bench, const ModelConfig& config, const CostFit& fit) {
  bench.report.Add({.suite = "parts",
                    .model = config.name,
                    .shape = absl::StrCat(fit.residuals.size(), " times"),
                    .what = "cost model, typical error",
                    .value = fit.rms_error * 100,
                    .unit = "%",
                    .numbers = {{"worst_percent", fit.worst_error * 100},
                                {"fixed_s", fit.model.fixed_s},
                                {"linear_s_per_token", fit.model.linear_s_per_token},
                                {"attention_s_per_token_pair", fit.model.attention_s_per_token_pair}},
                    .note = absl::StrJoin(fit.doubts, "; ")});
}

absl::Status Predict(const Bench& bench, const ModelConfig& config, CostModel model, int64_t tokens, double rate) {
  model.links = {{.latency_s = kLinkLatency, .bytes_per_s = rate}};
  const auto ttft = [&](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
    RUNAHEAD_ASSIGN_OR_RETURN(const SimulatedRun run, SimulateChain(model, Schedule::kKvr, parts));
    return run.ttft_s;
  };
  double single = 0;
  for (const int width : {1, 2, 4, 8}) {
    if (width > tokens) break;
    SearchOptions options;
    options.max_evaluations = bench.tiny ? kEvaluations / 100 : kEvaluations;
    options.last_stride = bench.tiny ? 1 : kPartStride;
    RUNAHEAD_ASSIGN_OR_RETURN(const SearchResult best, SearchPartition(tokens, width, ObjectiveOf(ttft), options));
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<int64_t> parts, EvenParts(tokens, width));
    RUNAHEAD_ASSIGN_OR_RETURN(const double even, ttft(parts));
    if (width == 1) single = best.best.seconds;
    bench.report.Add({.suite = "parts",
                      .model = config.name,
                      .shape = absl::StrCat("tokens=", tokens, " cards=", width),
                      .what = absl::StrCat("TTFT, prediction, ", rate / 1e9, " GB/s"),
                      .value = best.best.seconds * 1e3,
                      .unit = "ms",
                      .numbers = {{"even_ms", even * 1e3},
                                  {"speedup", single / best.best.seconds},
                                  {"link_gb_s", rate / 1e9},
                                  {"link_latency_us", kLinkLatency * 1e6}},
                      .parts = best.parts,
                      .note = "prediction: simulated, not run"});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchParts(const Bench& bench) {
  for (const ModelConfig& config : BenchModels(bench)) {
    RUNAHEAD_ASSIGN_OR_RETURN(const BenchModel model, MakeBenchModel(bench, config));
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<TimedRun> runs, TimeParts(bench, model));
    RUNAHEAD_ASSIGN_OR_RETURN(const CostFit fit, Fit(config, model.full->attention(0), runs));
    SayFit(bench, config, fit);
    for (const int64_t tokens : {8192, 16384, 32768}) {
      for (const double rate : kLinkRates) {
        RUNAHEAD_RETURN_IF_ERROR(Predict(bench, config, fit.model, bench.Size(tokens, 128), rate));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace runahead
