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
#include "scheduler/recompute/kv_from.h"
#include "server/base/clock.h"
#include "server/base/logging.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/kvpr_report.h"
#include "worker/lane_profiler.h"
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
  RUNAHEAD_ASSIGN_OR_RETURN(SplitController controller, SplitController::Create(SplitObjective::kStep, costs));
  return std::make_unique<ControlledSplit>(std::move(controller));
}

KvQuant QuantOf(const WorkerOptions& options, const ModelConfig& config) {
  return {.bits = options.kv_bits == "4" ? 4 : 8, .group = KvGroup(config.kv_dim())};
}

// Of a token in one layer, as the host keeps it.
int64_t StoredKvBytes(const WorkerOptions& options, const ModelConfig& config, DType kv_dtype) {
  const int64_t values = 2 * config.kv_dim();
  const bool quantised = options.quantises_kv() && KvGroup(config.kv_dim()) > 0;
  if (!quantised) return values * static_cast<int64_t>(DTypeSize(kv_dtype));
  return static_cast<int64_t>(KvQuantRowBytes(values, QuantOf(options, config)));
}

// Where heads share KV heads, or KV is quantised, X may be no smaller than KV: to copy it gains nothing. Where it is
// little smaller, it takes more from what else staging, the device and host memory could do than it spares
// (docs/kvpr.md).
bool SparesTheLink(int64_t x_bytes, int64_t kv_bytes) {
  return 4 * x_bytes <= 3 * kv_bytes;
}

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
  const auto scratch = static_cast<size_t>(KvprLoop::ScratchBytes(model, store.options(), options.max_batch));
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
  if (KvGroup(config.kv_dim()) == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "kv_bits: K of a token has %d values in a layer, which are not whole groups of 32: only 16 works with this "
        "model",
        config.kv_dim()));
  }
  return KvQuantisation{QuantOf(options, config), kv_dtype, host};
}

int64_t XRowBytes(const WorkerOptions& options, const ModelConfig& config, const Device& device, RowForm form) {
  const Mode mode = RecomputeChoice(options).mode;
  if (!device.has_host_link() || mode == Mode::kOff) return 0;
  const int64_t bytes = RowFormBytes(form, config.hidden);
  if (mode == Mode::kAuto && !SparesTheLink(bytes, StoredKvBytes(options, config, device.kv_dtype()))) return 0;
  return bytes;
}

std::string XText(const WorkerOptions& options, const ModelConfig& config, const Device& device, RowForm form) {
  if (!device.has_host_link()) return "nothing is recomputed: there is no link to spare";
  if (RecomputeChoice(options).mode == Mode::kOff) return "nothing is recomputed (recompute: off)";
  const std::string sizes =
      absl::StrFormat("X of a token takes %d bytes a layer in %s, KV %d", RowFormBytes(form, config.hidden),
                      std::string(RowFormName(form)), StoredKvBytes(options, config, device.kv_dtype()));
  if (XRowBytes(options, config, device, form) > 0) return absl::StrCat("X is kept beside KV: ", sizes);
  return absl::StrCat("nothing is recomputed, for it would hardly spare the link: ", sizes);
}

std::function<int64_t(int64_t)> KvFromOf(const WorkerOptions& options, const LaneCosts& profile) {
  return [profile, fixed = FixedRecompute(options)](int64_t prompt_tokens) {
    return KvFrom(profile, fixed, prompt_tokens);
  };
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

absl::StatusOr<std::unique_ptr<StepLoop>> NewKvprLoop(const WorkerOptions& options, const Model& model,
                                                      const KvprDevices& devices, const KvStore& store,
                                                      size_t spare_bytes, const KvprReaders& readers) {
  Device& device = devices.device;
  DecodeMetrics& metrics = readers.metrics;
  const bool host_lane = HostChoice(options).mode != Mode::kOff && !options.quantises_kv();
  LaneProfiler::Host host{host_lane ? &devices.host : nullptr, options.emulated_host_gbps};
  const auto profiler = std::make_shared<LaneProfiler>(model, device, host, metrics, RealClock());
  RUNAHEAD_ASSIGN_OR_RETURN(const LaneProfile profile,
                            profiler->Measure({.rows = options.max_batch,
                                               .stored_row_bytes = store.options().stored_row_bytes(),
                                               .x_row_bytes = store.options().x_row_bytes,
                                               .x_form = store.options().x_form}));
  readers.profile = profile;
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<SplitSource> split, NewSplit(options, profile.costs));
  KvprOptions kvpr{.max_rows = options.max_batch};
  if (host_lane) kvpr.host = &devices.host;
  kvpr.emulated_host_gbps = options.emulated_host_gbps;
  kvpr.on_leave = [&metrics](const KvprSequenceReport& report) {
    metrics.SetKvBytes(KvTier::kDevice, report.resident_bytes);
    LogInfo("kvpr", SequenceLine(report));
  };
  kvpr.on_idle = [profiler](SplitSource& split) { profiler->MeasureAgain(split); };
  const SplitSource& costs = *split;
  kvpr.on_step = [&metrics, &costs, layers = model.config().layers](const KvprStep& step) {
    const LaneCosts now = costs.costs();
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
