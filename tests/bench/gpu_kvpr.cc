// Decode whose KV is in host memory, over the device's own link: KVPR by the solver beside all KV streamed from pinned
// memory, beside kernels that read host memory where it lies, and beside KV on the device; under budgets of device
// memory beside a window of KV alone; and weights that are streamed beside resident ones.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/gpu_kvpr_model.h"
#include "tests/bench/gpu_kvpr_turns.h"
#include "tests/bench/gpu_model.h"
#include "worker/decode/kvpr/host_profile.h"
#include "worker/decode/kvpr/profile.h"

namespace runahead {
namespace {

constexpr int64_t kBatch = 64;
constexpr int64_t kPrompts[] = {256, 512, 1024};
// Under budgets: where heads share KV heads, as much KV as the others have at the longest prompt.
constexpr int64_t kTierPrompt = 1024, kSharedTierPrompt = 4096;
constexpr int64_t kBudgetsGib[] = {8, 16};  // of device memory, for a model of kWholeLayers
constexpr unsigned kUses = kUseDecode | kUseRecompute;

// Of the CPUs beside the one that drives the device, as a worker's host lane has them.
absl::StatusOr<std::shared_ptr<Device>> OpenHost() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return NewCpuDevice({.threads = std::max(1, cores - 1)});
}

// One model and its sequences.
class KvprBench {
 public:
  KvprBench(const Bench& bench, Device& host, const SyntheticModel& shape)
      : bench_(bench),
        device_(*bench.device),
        host_(host),
        shares_kv_(shape.kv_heads < shape.heads),
        batch_(bench.Size(kBatch, 32)),
        tier_prompt_(shares_kv_ ? bench.Size(kSharedTierPrompt, 8) : bench.Size(kTierPrompt, 2)) {}

  absl::Status Run(const std::shared_ptr<const ModelFile>& file) {
    RUNAHEAD_RETURN_IF_ERROR(Prepare(file));
    for (const int64_t prompt : kPrompts) RUNAHEAD_RETURN_IF_ERROR(CompareStreaming(bench_.Size(prompt, 8)));
    for (const int64_t gib : kBudgetsGib) RUNAHEAD_RETURN_IF_ERROR(CompareTiers(gib));
    return shares_kv_ ? absl::OkStatus() : CompareWeights(file, bench_.Size(kPrompts[0], 8));
  }

 private:
  // As a decode worker begins: the model, what lanes cost, and KV in host memory, with X where that is smaller.
  absl::Status Prepare(const std::shared_ptr<const ModelFile>& file) {
    RUNAHEAD_ASSIGN_OR_RETURN(model_, LoadModel(file, bench_.device, kUses, [](int, int) {}));
    with_x_ = XRowBytes(*model_, device_) < model_->kv_row_bytes();
    RUNAHEAD_ASSIGN_OR_RETURN(costs_, Costs(*model_));
    costs_with_host_ = costs_;
    const std::unique_ptr<Stream> stream = host_.NewStream("profile");
    RUNAHEAD_RETURN_IF_ERROR(MeasureHostLane(*model_, device_, {host_, *stream}, costs_with_host_));
    SayCosts();
    const int64_t longest = bench_.Size(*std::max_element(std::begin(kPrompts), std::end(kPrompts)), 8);
    DecodeBatch::Options options{.tier = MemoryKind::kHost,
                                 .batch = batch_,
                                 .tokens = std::max(longest, tier_prompt_),
                                 .room = KvprTurns::kRoom,
                                 .with_x = with_x_};
    RUNAHEAD_ASSIGN_OR_RETURN(on_host_, DecodeBatch::Create(device_, *model_, options));
    options.tier = MemoryKind::kDevice;
    options.tokens = longest;
    options.with_x = false;
    absl::StatusOr<std::unique_ptr<DecodeBatch>> on_device = DecodeBatch::Create(device_, *model_, options);
    if (absl::IsResourceExhausted(on_device.status())) {
      bench_.report.Missing(FigureOf("", "step, all resident", 0, "ms"), std::string(on_device.status().message()));
      return absl::OkStatus();
    }
    RUNAHEAD_RETURN_IF_ERROR(on_device.status());
    on_device_ = *std::move(on_device);
    return absl::OkStatus();
  }

  absl::StatusOr<LaneCosts> Costs(const Model& model) {
    RUNAHEAD_ASSIGN_OR_RETURN(const LaneProfile profile,
                              MeasureLanes(model, device_,
                                           {.rows = batch_,
                                            .stored_row_bytes = model.kv_row_bytes(),
                                            .x_row_bytes = with_x_ ? XRowBytes(model, device_) : 0,
                                            .x_form = FormOf(device_.compute_dtype())}));
    return profile.costs;
  }

  absl::Status CompareStreaming(int64_t prompt) {
    KvprTurns turns(device_);
    RUNAHEAD_RETURN_IF_ERROR(turns.AddPlainKvpr("l = 0", *model_, *on_host_, costs_, Options()));
    RUNAHEAD_RETURN_IF_ERROR(turns.AddSolver("solver", *model_, *on_host_, costs_, Options()));
    turns.AddPlain("mapped host memory", *model_, *on_host_);
    if (on_device_ != nullptr) turns.AddPlain("all resident", *model_, *on_device_);
    RUNAHEAD_RETURN_IF_ERROR(turns.Run(prompt, bench_.seconds));
    const std::string shape = absl::StrCat(batch_, " of ", prompt);
    SayCases(shape, turns);
    const KvprTurns::Case &streamed = turns.cases()[0], &solver = turns.cases()[1], &mapped = turns.cases()[2];
    bench_.report.Add(
        FigureOf(shape, "gain over mapped host memory", mapped.timing().median_s / solver.timing().median_s, "times"));
    // Of the step's own tokens nothing is copied.
    const double bytes = costs_.kv_bytes * static_cast<double>(streamed.taken.back().rows.streamed - batch_) * layers();
    Figure share = FigureOf(shape, "bytes over bandwidth, l = 0",
                            bytes / costs_.link_bytes_per_s / streamed.timing().median_s, "ratio");
    share.note = "what the copies of a step take at the link's rate / step";
    bench_.report.Add(share);
    return absl::OkStatus();
  }

  absl::Status CompareTiers(int64_t gib) {
    KvprOptions options = Options();
    RUNAHEAD_ASSIGN_OR_RETURN(options.device_bytes, DeviceBytes(gib));
    KvprTurns turns(device_);
    RUNAHEAD_RETURN_IF_ERROR(turns.AddPlainKvpr("window alone", *model_, *on_host_, costs_, options));
    RUNAHEAD_RETURN_IF_ERROR(turns.AddSolver("solver", *model_, *on_host_, costs_, options));
    options.host = &host_;
    RUNAHEAD_RETURN_IF_ERROR(turns.AddSolver("solver, host lane", *model_, *on_host_, costs_with_host_, options));
    RUNAHEAD_RETURN_IF_ERROR(turns.Run(tier_prompt_, bench_.seconds));
    SayCases(absl::StrCat(batch_, " of ", tier_prompt_, ", ", gib, " GiB"), turns);
    return absl::OkStatus();
  }

  absl::Status CompareWeights(const std::shared_ptr<const ModelFile>& file, int64_t prompt) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> streamed,
                              LoadModel(file, bench_.device, kUses | kUseStreamed, [](int, int) {}));
    RUNAHEAD_ASSIGN_OR_RETURN(const LaneCosts costs, Costs(*streamed));
    KvprTurns turns(device_);
    RUNAHEAD_RETURN_IF_ERROR(turns.AddSolver("weights resident", *model_, *on_host_, costs_, Options()));
    RUNAHEAD_RETURN_IF_ERROR(turns.AddSolver("weights streamed", *streamed, *on_host_, costs, Options()));
    RUNAHEAD_RETURN_IF_ERROR(turns.Run(prompt, bench_.seconds));
    SayCases(absl::StrCat(batch_, " of ", prompt), turns);
    return absl::OkStatus();
  }

  KvprOptions Options() const {
    KvprOptions options{.max_rows = batch_};
    if (bench_.tiny) options.chunk_tokens = 256, options.slots = 2;
    return options;
  }

  // The layers' share of a whole model's budget, but all of the staging. In a tiny bench half of KV fits.
  absl::StatusOr<int64_t> DeviceBytes(int64_t gib) {
    RUNAHEAD_ASSIGN_OR_RETURN(const auto unlimited,
                              KvprLoop::Create(*model_, device_, on_host_->store(), on_host_->stream(),
                                               std::make_unique<FixedSplit>(0, costs_), Options()));
    const int64_t staging = unlimited->device_bytes();
    const auto layers = model_->config().layers;
    if (bench_.tiny) return 2 * staging + batch_ * tier_prompt_ * model_->kv_row_bytes() * layers / 2;
    return staging + ((gib << 30) - staging) * layers / kWholeLayers;
  }

  double layers() const { return static_cast<double>(model_->config().layers); }

  Figure FigureOf(std::string shape, std::string what, double value, std::string unit) const {
    return {.suite = "kvpr",
            .model = model_->config().name,
            .shape = std::move(shape),
            .what = std::move(what),
            .value = value,
            .unit = std::move(unit)};
  }

  // Of a layer, as they were measured at start.
  void SayCosts() {
    const LaneCosts& costs = costs_with_host_;
    Figure figure = FigureOf(absl::StrCat("batch=", batch_), "link", costs.link_bytes_per_s / 1e9, "GB/s");
    figure.numbers = {{"rho", costs.recompute_s * costs.link_bytes_per_s / costs.kv_bytes},
                      {"project_us", 1e6 * costs.project_s},
                      {"recompute_ns", 1e9 * costs.recompute_s},
                      {"attend_ns", 1e9 * costs.attend_s},
                      {"signal_us", 1e6 * costs.signal_s},
                      {"host_gbytes_per_s", costs.kv_bytes / costs.host_attend_s / 1e9},
                      {"shared_gbytes_per_s", costs.host_bytes_per_s / 1e9}};
    figure.note = "rho: recomputing KV / copying it; ns: a position, a layer; shared: by copies and host lane";
    bench_.report.Add(figure);
  }

  // Each case, and how many times as fast as the first one it is.
  void SayCases(const std::string& shape, const KvprTurns& turns) {
    const KvprTurns::Case& first = turns.cases().front();
    for (const KvprTurns::Case& one : turns.cases()) {
      SayStep(shape, one);
      if (&one != &first) SayGain(shape, first, one);
    }
  }

  void SayStep(const std::string& shape, const KvprTurns::Case& one) {
    const Timing timing = one.timing();
    Figure figure = FigureOf(shape, absl::StrCat("step, ", one.name), 1e3 * timing.median_s, "ms");
    figure.timing = timing;
    figure.numbers = {{"layer_ms", 1e3 * timing.median_s / layers()},
                      {"tokens_per_s", static_cast<double>(batch_) / timing.median_s}};
    figure.note = absl::StrCat("layers: ", model_->config().layers, " of ", kWholeLayers);
    if (!one.taken.empty()) {
      const KvprTurns::Taken& last = one.taken.back();
      const auto mean = [&](int64_t rows) { return static_cast<double>(rows) / static_cast<double>(batch_); };
      figure.numbers.insert(figure.numbers.end(), {{"recomputed", mean(last.rows.recomputed)},
                                                   {"x_copied", mean(last.rows.x_streamed)},
                                                   {"streamed", mean(last.rows.streamed)},
                                                   {"host", mean(last.rows.host)},
                                                   {"resident", mean(last.rows.resident)},
                                                   {"busy_share", one.BusyShare()},
                                                   {"overlap", last.overlap}});
      absl::StrAppend(&figure.note, "; positions of a sequence; busy: the device, of the step");
    }
    bench_.report.Add(figure);
  }

  void SayGain(const std::string& shape, const KvprTurns::Case& first, const KvprTurns::Case& one) {
    Figure figure =
        FigureOf(shape, absl::StrCat("gain of ", one.name), first.timing().median_s / one.timing().median_s, "times");
    figure.note = absl::StrCat("as fast as ", first.name);
    if (!one.taken.empty()) figure.numbers = {{"predicted", PredictedGain(first, one)}};
    bench_.report.Add(figure);
  }

  const Bench& bench_;
  Device& device_;
  Device& host_;
  const bool shares_kv_;
  const int64_t batch_, tier_prompt_;
  std::shared_ptr<const Model> model_;
  bool with_x_ = false;
  LaneCosts costs_, costs_with_host_;
  std::unique_ptr<DecodeBatch> on_host_, on_device_;  // on_device_ null: it does not fit
};

}  // namespace

absl::Status BenchKvpr(const Bench& bench) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<Device> host, OpenHost());
  for (const SyntheticModel& shape : KvprModels(bench)) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const ModelFile> file, RandomGguf(shape));
    const absl::Status status = KvprBench(bench, *host, shape).Run(file);
    if (absl::IsResourceExhausted(status)) {
      bench.report.Missing({.suite = "kvpr", .model = shape.name, .shape = "", .what = "step", .unit = "ms"},
                           std::string(status.message()));
      continue;
    }
    RUNAHEAD_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace runahead
