#include "worker/decode_role.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "worker/decode/static_window_loop.h"
#include "worker/decode/step_memory.h"
#include "worker/device_factory.h"
#include "worker/kv/tier_choice.h"
#include "worker/kvpr_decode.h"
#include "worker/model/x_form.h"

namespace runahead {
namespace {

struct StoredX {
  int64_t row_bytes = 0;
  RowForm form = RowForm::kF32;
};

KvStoreOptions StoreOptions(const WorkerOptions& options, const Model& model, uint64_t incarnation, const StoredX& x,
                            const std::optional<KvQuantisation>& quantisation) {
  KvStoreOptions store;
  store.layers = model.config().layers;
  store.row_bytes = model.kv_row_bytes();
  store.x_row_bytes = x.row_bytes;
  store.x_form = x.form;
  store.quantisation = quantisation;
  store.capacity_tokens = options.kv_memory / (store.layers * (store.stored_row_bytes() + x.row_bytes));
  store.incarnation = incarnation;
  store.windows = model.windows();
  return store;
}

// On the device where weights are and all of kv_memory fits there beside steps, which take `spare_bytes`, else in host
// memory, and with X where decode is to recompute from it.
absl::StatusOr<std::unique_ptr<KvStore>> CreateStore(const WorkerOptions& options, Device& device, const Model& model,
                                                     uint64_t incarnation, size_t spare_bytes,
                                                     const std::optional<KvQuantisation>& quantisation) {
  if (MayKeepKvOnDevice(options) && device.has_host_link() && !model.streams_weights()) {
    absl::StatusOr<std::unique_ptr<KvStore>> store =
        CreateDeviceStore(StoreOptions(options, model, incarnation, {}, {}), spare_bytes, device, RealClock());
    if (!absl::IsResourceExhausted(store.status())) return store;
  }
  const RowForm form = XFormOf(model, device);
  const StoredX x{XRowBytes(options, model.config(), device, form), form};
  return KvStore::Create(StoreOptions(options, model, incarnation, x, quantisation), device, RealClock());
}

// Where `static_window` is given. INVALID_ARGUMENT names the option.
absl::StatusOr<StaticWindowSize> StaticWindowOf(const WorkerOptions& options, const Device& device) {
  if (device.has_host_link()) {
    return absl::InvalidArgumentError(
        "static_window: is for devices that compute in the memory of the host, and this one has a link: leave it out");
  }
  auto size = MakeStaticWindowSize(options.static_window, options.static_window_reserve);
  if (!size.ok()) {
    return absl::Status(size.status().code(), absl::StrCat("static_window: ", size.status().message()));
  }
  return size;
}

SliceAnswer AnswerOf(SliceVerdict verdict) {
  switch (verdict) {
    case SliceVerdict::kAccepted:
      return SliceAnswer::kAccepted;
    case SliceVerdict::kCorrupt:
      return SliceAnswer::kCorrupt;
    case SliceVerdict::kNoLease:
      return SliceAnswer::kNoLease;
    case SliceVerdict::kBadRange:
    case SliceVerdict::kBadForm:
      break;
  }
  return SliceAnswer::kBadRange;
}

absl::StatusOr<std::unique_ptr<StepLoop>> NewStaticWindowLoop(const StaticWindowOptions& options, const Model& model,
                                                              Device& device, const KvStore& store, Stream& stream) {
  auto loop = StaticWindowLoop::Create(model, device, store, stream, options);
  if (!loop.ok()) {
    return absl::Status(loop.status().code(), absl::StrCat("static_window: ", loop.status().message()));
  }
  LogInfo("decode", "static windows for contexts of ", options.size.context, " tokens in ", options.size.reserve,
          " rows, for ", options.max_rows, " sequences: ", (*loop)->bytes(), " bytes");
  return *std::move(loop);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeRole>> DecodeRole::Create(const WorkerOptions& options, Device& device,
                                                               std::shared_ptr<const Model> model, uint64_t incarnation,
                                                               MetricRegistry& registry) {
  std::unique_ptr<DecodeRole> role(new DecodeRole);
  role->metrics_ = std::make_unique<DecodeMetrics>(registry);
  DecodeMetrics& metrics = *role->metrics_;
  if (device.has_host_link() || options.quantises_kv()) {
    RUNAHEAD_ASSIGN_OR_RETURN(role->host_, OpenHostDevice(options, device));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<KvQuantisation> quantisation,
                            QuantisationOf(options, model->config(), model->kv_dtype(), role->host_.get()));
  const size_t steps_take = DecodeStepBytes(model->config(), options.max_batch,
                                            StoreOptions(options, *model, 0, {}, quantisation).capacity_tokens);
  auto store = CreateStore(options, device, *model, incarnation, steps_take, quantisation);
  if (!store.ok()) {
    return absl::Status(store.status().code(), absl::StrCat("kv_memory: ", store.status().message()));
  }
  role->store_ = *std::move(store);
  const bool on_host = role->store_->options().tier == MemoryKind::kHost;
  const bool kvpr = quantisation.has_value() || (device.has_host_link() && on_host);
  if (role->host_ != nullptr) {
    LogInfo("decode", "KV is kept ",
            quantisation.has_value()   ? absl::StrCat("in host memory, in ", options.kv_bits, " bits")
            : !kvpr                    ? "on the device"
            : model->streams_weights() ? "in host memory, as the weights are"
                                       : "in host memory: kv_memory does not fit on the device",
            kvpr ? absl::StrCat("; ", XText(options, model->config(), device, XFormOf(*model, device))) : "");
  }
  role->report_ = std::make_unique<StoreReport>(*role->store_, metrics);
  StoreReport& report = *role->report_;
  report.Update();
  role->reaper_ = std::make_unique<LeaseReaper>(*role->store_, RealClock(), [&report](int) { report.Update(); });

  SliceReceiverOptions slices;
  slices.kv_form = FormOf(model->kv_dtype());
  slices.on_corrupt = [&metrics] { metrics.CountChecksumFailure(); };
  slices.on_verdict = [&metrics](SliceVerdict verdict) { metrics.CountSlice(AnswerOf(verdict)); };
  slices.progress = role->arrival_progress_;
  role->receiver_ = std::make_unique<SliceReceiver>(*role->store_, slices);
  role->handoff_service_ = std::make_unique<GrpcHandoffService>(*role->receiver_);

  DecodeEngineOptions steps;
  steps.max_batch = options.max_batch;
  steps.on_step = [&metrics](const DecodeStep& step) {
    metrics.ObserveStep(static_cast<int>(step.batch_size), step.took);
  };
  steps.progress = role->progress_;
  if (kvpr) {
    steps.make_loop = [&options, &device, &metrics, steps_take, model = model.get(), store = role->store_.get(),
                       host = role->host_.get(), &profile = role->lane_profile_](Stream& stream) {
      return NewKvprLoop(options, *model, {device, *host, stream}, *store, steps_take, {metrics, profile});
    };
  }
  if (options.static_window > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(const StaticWindowSize size, StaticWindowOf(options, device));
    steps.make_loop = [windows = StaticWindowOptions{size, options.max_batch}, &device, model = model.get(),
                       store = role->store_.get()](Stream& stream) {
      return NewStaticWindowLoop(windows, *model, device, *store, stream);
    };
  }
  RUNAHEAD_ASSIGN_OR_RETURN(role->engine_,
                            DecodeEngine::Create(device, std::move(model), *role->store_, std::move(steps)));
  DecodeServiceOptions service;
  service.leases_changed = [&report] { report.Update(); };
  if (role->lane_profile_.has_value()) service.kv_from = KvFromOf(options, role->lane_profile_->costs);
  role->service_ = std::make_unique<DecodeService>(*role->engine_, *role->store_, std::move(service));
  return role;
}

void DecodeRole::BeginEpoch(MessageEngine& engine) {
  store_->BeginEpoch(engine.self().epoch);
  link_receiver_ = std::make_unique<MessageHandoffReceiver>(engine, *receiver_);
}

void DecodeRole::EndEpoch() {
  link_receiver_.reset();
  store_->BeginEpoch(store_->epoch() + 1);
  service_->CancelAll();
  report_->Update();
}

void DecodeRole::Release(const LeaseId& lease) {
  // What decodes on it gives it back itself.
  if (!engine_->CancelLease(lease)) store_->Release(lease);
  report_->Update();
}

}  // namespace runahead
