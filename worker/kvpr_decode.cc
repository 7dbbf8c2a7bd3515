#include "worker/kvpr_decode.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/kv_group.h"
#include "kernels/base/status_macros.h"
#include "scheduler/recompute/x_gain.h"
#include "server/base/clock.h"
#include "server/base/logging.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/kvpr_report.h"
#include "worker/model/x_form.h"

namespace runahead {
namespace {

using Mode = LaneChoice::Mode;

// Options were checked.
LaneChoice RecomputeChoice(const WorkerOptions& options) {
  return *ParseLaneChoice("recompute", options.recompute);
}
LaneChoice HostChoice(const WorkerOptions& options) {
  return *ParseLaneChoice("host_lane", options.host_lane);
}

// What every step recomputes; absent: the solver says. A number fixes both lanes: the other one, where it is none, gets
// nothing. Where recomputation is off there is no X.
std::optional<int64_t> FixedRecompute(const WorkerOptions& options) {
  const LaneChoice recompute = RecomputeChoice(options), host = HostChoice(options);
  const bool fixed = recompute.mode == Mode::kFixed || host.mode == Mode::kFixed;
  if (fixed || (recompute.mode == Mode::kOff && host.mode == Mode::kOff)) return recompute.tokens;
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<SplitSource>> NewSplit(const WorkerOptions& options, const LaneCosts& costs) {
  if (const std::optional<int64_t> fixed = FixedRecompute(options)) {
    return std::make_unique<FixedSplit>(*fixed, costs, HostChoice(options).tokens);
  }
  const SplitObjective objective = ParseSplitObjective(options.kvpr_objective).value_or(SplitObjective::kStep);
  RUNAHEAD_ASSIGN_OR_RETURN(SplitController controller, SplitController::Create(objective, costs));
  return std::make_unique<ControlledSplit>(std::move(controller));
}

bool HasHostLane(const WorkerOptions& options) {
  return HostChoice(options).mode != Mode::kOff && !options.quantises_kv();
}

// None at 16 bits, and for rows that are not whole groups.
std::optional<KvQuant> KvQuantOf(const WorkerOptions& options, const ModelConfig& config) {
  if (!options.quantises_kv() || KvGroup(config.kv_dim()) == 0) return std::nullopt;
  return KvQuant{.bits = options.kv_bits == "4" ? 4 : 8, .group = KvGroup(config.kv_dim())};
}

// Of a token in one layer, as the host keeps it.
int64_t StoredKvBytes(const WorkerOptions& options, const ModelConfig& config, DType kv_dtype) {
  const int64_t values = 2 * config.kv_dim();
  const std::optional<KvQuant> quant = KvQuantOf(options, config);
  if (!quant.has_value()) return values * static_cast<int64_t>(DTypeSize(kv_dtype));
  return static_cast<int64_t>(KvQuantRowBytes(values, *quant));
}

// Where heads share KV heads, or KV is quantised, X may be no smaller than KV: to copy it gains nothing. Where it is
// little smaller, it takes more from what else staging, the device and host memory could do than it spares
// (docs/kvpr.md).
bool SparesTheLink(int64_t x_bytes, int64_t kv_bytes) {
  return 4 * x_bytes <= 3 * kv_bytes;
}

// Whether X can be quantised.
bool InWholeGroups(const ModelConfig& config) {
  return config.hidden % QuantOf(RowForm::kQ4).group == 0;
}

// So many times as fast as it was measured recomputation may be: other work may have had the cores meanwhile, and what
// is not kept is missed for as long as the process runs.
constexpr double kHope = 2;

// Which option says how much KV, X and their staging may take.
const char* DeviceBytesOption(const WorkerOptions& options) {
  return options.kv_device_budget > 0 ? "kv_device_budget" : "device_memory_budget";
}

// What these may take; 0: no limit. RESOURCE_EXHAUSTED where steps leave nothing.
absl::StatusOr<int64_t> DeviceBytes(const WorkerOptions& options, const Device& device, size_t spare_bytes) {
  const size_t left = device.memory_left();
  if (options.kv_device_budget > 0 || left == std::numeric_limits<size_t>::max()) return options.kv_device_budget;
  if (left > spare_bytes) return static_cast<int64_t>(left - spare_bytes);
  return absl::ResourceExhaustedError(
      absl::StrFormat("%d bytes are left beside weights, and steps of %d sequences take %d before any KV passes "
                      "through the device: allow more, or a smaller max_batch",
                      left, options.max_batch, spare_bytes));
}

absl::StatusOr<std::unique_ptr<KvprLoop>> NewLoop(const WorkerOptions& options, const Model& model,
                                                  const KvprDevices& devices, const KvStore& store, size_t spare_bytes,
                                                  std::unique_ptr<SplitSource> split, KvprOptions kvpr) {
  const auto scratch =
      static_cast<size_t>(KvprLoop::ScratchBytes(model, devices.device, store.options(), options.max_batch));
  RUNAHEAD_ASSIGN_OR_RETURN(kvpr.device_bytes, DeviceBytes(options, devices.device, spare_bytes + scratch));
  return KvprLoop::Create(model, devices.device, store, devices.stream, std::move(split), kvpr);
}

}  // namespace

absl::Status CheckKvprOptions(const WorkerOptions& options, const Device& device) {
  if (device.has_host_link()) return absl::OkStatus();
  if (options.decode_schedule == "throughput") {
    return absl::InvalidArgumentError(
        "decode_schedule: throughput brings weights over a link, and this device computes in host memory: give "
        "latency or auto, or emulate a link with emulated_link_gbps");
  }
  constexpr char kWhy[] =
      ": KV is kept in the memory that this device computes in, so nothing is copied: leave it out, or emulate a link "
      "with emulated_link_gbps";
  if (options.kv_device_budget > 0) return absl::InvalidArgumentError(absl::StrCat("kv_device_budget", kWhy));
  if (options.x_bits != "auto") return absl::InvalidArgumentError(absl::StrCat("x_bits", kWhy));
  if (RecomputeChoice(options).mode == Mode::kFixed) return absl::InvalidArgumentError(absl::StrCat("recompute", kWhy));
  if (HostChoice(options).mode == Mode::kFixed) return absl::InvalidArgumentError(absl::StrCat("host_lane", kWhy));
  return absl::OkStatus();
}

bool MayKeepKvOnDevice(const WorkerOptions& options) {
  if (options.quantises_kv()) return false;
  return options.kv_device_budget == 0 || options.kv_memory <= options.kv_device_budget;
}

absl::StatusOr<std::optional<KvQuantisation>> QuantisationOf(const WorkerOptions& options, const ModelConfig& config,
                                                             DType kv_dtype, Device* host) {
  if (!options.quantises_kv()) return std::optional<KvQuantisation>();
  const std::optional<KvQuant> quant = KvQuantOf(options, config);
  if (!quant.has_value()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "kv_bits: K of a token has %d values in a layer, which are not whole groups of 32: only 16 works with this "
        "model",
        config.kv_dim()));
  }
  return KvQuantisation{*quant, kv_dtype, host};
}

RowForm KeptXForm(const WorkerOptions& options, const ModelConfig& config, DType kv_dtype, RowForm arrives) {
  const bool by_itself = options.x_bits == "auto";
  const std::string& bits = by_itself ? options.kv_bits : options.x_bits;
  if (bits == "16" || !InWholeGroups(config)) return arrives;
  const RowForm shorter = bits == "4" ? RowForm::kQ4 : RowForm::kQ8;
  if (!by_itself) return shorter;
  const auto spares = [&, kv = StoredKvBytes(options, config, kv_dtype)](RowForm form) {
    return SparesTheLink(RowFormBytes(form, config.hidden), kv);
  };
  return !spares(arrives) && spares(shorter) ? shorter : arrives;
}

int64_t XRowBytes(const WorkerOptions& options, const ModelConfig& config, const Device& device, RowForm arrives) {
  const Mode mode = RecomputeChoice(options).mode;
  if (!device.has_host_link() || mode == Mode::kOff) return 0;
  const int64_t bytes = RowFormBytes(KeptXForm(options, config, device.kv_dtype(), arrives), config.hidden);
  if (mode == Mode::kAuto && !SparesTheLink(bytes, StoredKvBytes(options, config, device.kv_dtype()))) return 0;
  return bytes;
}

KeptX XToKeep(const WorkerOptions& options, const ModelConfig& config, const Device& device, RowForm arrives,
              const LaneCosts& measured) {
  if (!device.has_host_link()) return {.text = "nothing is recomputed: there is no link to spare"};
  if (RecomputeChoice(options).mode == Mode::kOff) return {.text = "nothing is recomputed (recompute: off)"};
  const RowForm form = KeptXForm(options, config, device.kv_dtype(), arrives);
  const int64_t x = XRowBytes(options, config, device, arrives);
  const int64_t kv = StoredKvBytes(options, config, device.kv_dtype());
  const std::string sizes = absl::StrFormat("X of a token takes %d bytes a layer in %s, KV %d",
                                            RowFormBytes(form, config.hidden), std::string(RowFormName(form)), kv);
  if (x == 0) return {.text = absl::StrCat("nothing is recomputed, for it would hardly spare the link: ", sizes)};
  if (RecomputeChoice(options).mode == Mode::kAuto) {
    LaneCosts hoped = measured;
    hoped.recompute_s /= kHope;
    const int64_t room = options.kv_memory / (config.layers * (kv + x));
    const int64_t tokens = std::clamp<int64_t>(room, 1, config.context_length);
    const int64_t sequences = std::clamp<int64_t>(room / tokens, 1, options.max_batch);
    const double gain = GainOfX(hoped, sequences, tokens);
    if (gain < kLeastGainOfX) {
      return {.text =
                  absl::StrFormat("nothing is recomputed, for it would gain too little: steps of %d sequences of %d "
                                  "tokens would be %.2f times as fast at most",
                                  sequences, tokens, gain)};
    }
  }
  return {x, arrives, form, absl::StrCat("X is kept beside KV: ", sizes)};
}

bool MayStreamWeights(const WorkerOptions& options, const Device& device) {
  return options.decode_schedule != "latency" && !options.prefill() && device.has_host_link();
}

unsigned RecomputeUses(const WorkerOptions& options, const ModelConfig& config, const Device& device, bool streamed) {
  const bool no_limit = device.memory_left() == std::numeric_limits<size_t>::max();
  const bool on_device = MayKeepKvOnDevice(options) && (options.kv_device_budget > 0 || no_limit);
  if (!options.decode() || (on_device && !streamed)) return 0;
  return XRowBytes(options, config, device, SmallestXForm(config, device)) > 0 ? kUseRecompute : 0;
}

absl::StatusOr<KvprLanes> MeasureKvprLanes(const WorkerOptions& options, const Model& model, Device& device,
                                           Device& host, int64_t stored_row_bytes, DecodeMetrics& metrics) {
  KvprLanes lanes;
  LaneProfiler::Host with{HasHostLane(options) ? &host : nullptr, options.emulated_host_gbps};
  lanes.profiler = std::make_shared<LaneProfiler>(model, device, with, metrics, RealClock());
  if (options.x_bits != "auto" && options.x_bits != "16" && !InWholeGroups(model.config())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("x_bits: X of a token has %d values in a layer, which are not whole groups of 32: only 16 "
                        "works with this model",
                        model.config().hidden));
  }
  const RowForm arrives = XFormOf(model, device);
  RUNAHEAD_ASSIGN_OR_RETURN(
      lanes.profile, lanes.profiler->Measure({.rows = options.max_batch,
                                              .stored_row_bytes = stored_row_bytes,
                                              .x_row_bytes = XRowBytes(options, model.config(), device, arrives),
                                              .x_form = KeptXForm(options, model.config(), device.kv_dtype(), arrives),
                                              .kv_quant = KvQuantOf(options, model.config())}));
  LaneCosts& costs = lanes.profile.costs;
  lanes.x = XToKeep(options, model.config(), device, arrives, costs);
  if (lanes.x.row_bytes == 0) {
    costs.x_bytes = costs.kv_bytes;
    costs.recompute_s = 0;
  }
  lanes.demand = std::make_shared<XDemand>(costs, FixedRecompute(options));
  return lanes;
}

absl::StatusOr<std::unique_ptr<StepLoop>> NewKvprLoop(const WorkerOptions& options, const Model& model,
                                                      const KvprDevices& devices, const KvStore& store,
                                                      size_t spare_bytes, const KvprLanes& lanes,
                                                      DecodeMetrics& metrics) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<SplitSource> split, NewSplit(options, lanes.profile.costs));
  KvprOptions kvpr{.max_rows = options.max_batch};
  kvpr.of_prompt_only = options.recompute_within == "prompt";
  if (HasHostLane(options)) kvpr.host = &devices.host;
  kvpr.emulated_host_gbps = options.emulated_host_gbps;
  kvpr.on_leave = [&metrics](const KvprSequenceReport& report) {
    metrics.SetKvBytes(KvTier::kDevice, report.resident_bytes);
    LogInfo("kvpr", SequenceLine(report));
  };
  kvpr.on_idle = [profiler = lanes.profiler, demand = lanes.demand](SplitSource& split) {
    profiler->MeasureAgain(split);
    demand->SetCosts(split.costs(), 0, SplitRest::kMeasuring);
  };
  const SplitSource& costs = *split;
  kvpr.on_step = [&metrics, &costs, demand = lanes.demand, layers = model.config().layers](const KvprStep& step) {
    const LaneCosts now = costs.costs();
    demand->SetCosts(now, static_cast<int64_t>(step.plan.cuts.size()), step.rest);
    metrics.ObserveKvpr(ObservationOf(step, now, layers));
    metrics.SetLanes(SpeedsOf(now));
    metrics.SetKvBytes(KvTier::kDevice, step.resident_bytes);
  };
  absl::StatusOr<std::unique_ptr<KvprLoop>> loop =
      NewLoop(options, model, devices, store, spare_bytes, std::move(split), std::move(kvpr));
  if (!loop.ok()) {
    return absl::Status(loop.status().code(), absl::StrCat(DeviceBytesOption(options), ": ", loop.status().message()));
  }
  metrics.SetKvCapacityBytes(KvTier::kDevice, (*loop)->device_bytes());
  return *std::move(loop);
}

}  // namespace runahead
