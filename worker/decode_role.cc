#include "worker/decode_role.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/kv_table.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "worker/decode/static_window_loop.h"
#include "worker/decode/step_memory.h"
#include "worker/device_factory.h"
#include "worker/handoff/slice_sender.h"
#include "worker/kv/tier_choice.h"
#include "worker/kvpr_decode.h"

namespace runahead {
namespace {

KvStoreOptions StoreOptions(const WorkerOptions& options, const Model& model, uint64_t incarnation, const KeptX& x,
                            const std::optional<KvQuantisation>& quantisation) {
  KvStoreOptions store;
  store.layers = model.config().layers;
  store.row_bytes = model.kv_row_bytes();
  store.x_row_bytes = x.row_bytes;
  store.x_form = x.form;
  store.quantisation = quantisation;
  store.keeps = options.keeps_beginnings();
  store.capacity_tokens = options.kv_memory / (store.layers * (store.stored_row_bytes() + x.row_bytes));
  store.incarnation = incarnation;
  store.windows = model.windows();
  return store;
}

// On the device where weights are and all of kv_memory fits there beside steps, which take `spare_bytes`; null: it is
// to be in host memory.
absl::StatusOr<std::unique_ptr<KvStore>> TryDeviceStore(const WorkerOptions& options, Device& device,
                                                        const Model& model, uint64_t incarnation, size_t spare_bytes) {
  if (!MayKeepKvOnDevice(options) || !device.has_host_link() || model.streams_weights()) return nullptr;
  absl::StatusOr<std::unique_ptr<KvStore>> store =
      CreateDeviceStore(StoreOptions(options, model, incarnation, {}, {}), spare_bytes, device, RealClock());
  if (absl::IsResourceExhausted(store.status())) return nullptr;
  return store;
}

absl::Status OfKvMemory(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("kv_memory: ", status.message()));
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

// Pinned memory that rows of a sequence that moves, and those that are lent, pass through where KV is on a GPU; taken
// when the first ones do.
constexpr size_t kMovesStagingBytes = size_t{64} << 20;

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
          " rows, ", options.in_codes ? "in codes of 8 bits, " : "", "for ", options.max_rows,
          " sequences: ", (*loop)->bytes(), " bytes");
  return *std::move(loop);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeRole>> DecodeRole::Create(const WorkerOptions& options, Device& device,
                                                               std::shared_ptr<const Model> model, uint64_t incarnation,
                                                               int64_t step_rows, std::string no_rows_because,
                                                               std::shared_ptr<GrammarSource> grammars,
                                                               MetricRegistry& registry) {
  std::unique_ptr<DecodeRole> role(new DecodeRole);
  role->device_ = &device;
  role->metrics_ = std::make_unique<DecodeMetrics>(registry);
  DecodeMetrics& metrics = *role->metrics_;
  if (device.has_host_link() || options.quantises_kv()) {
    RUNAHEAD_ASSIGN_OR_RETURN(role->host_, OpenHostDevice(options, device));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<KvQuantisation> quantisation,
                            QuantisationOf(options, model->config(), model->kv_dtype(), role->host_.get()));
  const StepRowsAtMost rows{step_rows, step_rows > 0 ? LongestPass(step_rows, device) : 0};
  const size_t steps_take = DecodeStepBytes(model->config(), options.max_batch, rows,
                                            StoreOptions(options, *model, 0, {}, quantisation).capacity_tokens);
  auto store = TryDeviceStore(options, device, *model, incarnation, steps_take);
  if (!store.ok()) return OfKvMemory(store.status());
  role->store_ = *std::move(store);
  if (role->store_ == nullptr && role->host_ != nullptr && step_rows > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("step_rows: tokens of prompts are computed where KV lies on the device, and ",
                     model->streams_weights() ? "the weights are streamed, so KV is in host memory: leave step_rows out"
                     : options.quantises_kv() ? "kv_bits keeps it in host memory: leave one of them out"
                                              : "kv_memory does not fit there: leave step_rows out, or give less "
                                                "kv_memory"));
  }
  std::optional<KvprLanes> lanes;
  if (role->store_ == nullptr) {
    KvStoreOptions on_host = StoreOptions(options, *model, incarnation, {}, quantisation);
    if (role->host_ != nullptr && options.static_window == 0) {
      RUNAHEAD_ASSIGN_OR_RETURN(
          lanes, MeasureKvprLanes(options, *model, device, *role->host_, on_host.stored_row_bytes(), metrics));
      const KeptX& x = lanes->x;
      on_host = StoreOptions(options, *model, incarnation, x, quantisation);
      if (x.form != x.arrives) {
        on_host.x_quantisation = XQuantisation{x.arrives, model->config().hidden, role->host_.get()};
      }
      role->lane_profile_ = lanes->profile;
    }
    store = KvStore::Create(on_host, device, RealClock());
    if (!store.ok()) return OfKvMemory(store.status());
    role->store_ = *std::move(store);
  }
  if (role->host_ != nullptr) {
    LogInfo("decode", "KV is kept ",
            quantisation.has_value()   ? absl::StrCat("in host memory, in ", options.kv_bits, " bits")
            : !lanes.has_value()       ? "on the device"
            : model->streams_weights() ? "in host memory, as the weights are"
                                       : "in host memory: kv_memory does not fit on the device",
            lanes.has_value() ? absl::StrCat("; ", lanes->x.text) : "");
  }
  role->report_ = std::make_unique<StoreReport>(*role->store_, metrics);
  StoreReport& report = *role->report_;
  report.Update();
  role->reaper_ = std::make_unique<LeaseReaper>(*role->store_, RealClock(), [&report](int) { report.Update(); });

  SliceReceiverOptions slices;
  slices.kv_form = role->kv_form_ = FormOf(model->kv_dtype());
  slices.on_corrupt = [&metrics] { metrics.CountChecksumFailure(); };
  slices.on_verdict = [&metrics](SliceVerdict verdict) { metrics.CountSlice(AnswerOf(verdict)); };
  slices.progress = role->arrival_progress_;
  role->receiver_ = std::make_unique<SliceReceiver>(*role->store_, slices);

  DecodeEngineOptions steps;
  steps.max_batch = options.max_batch;
  const auto step_time = std::make_shared<StepTime>();
  steps.step_rows = step_rows;
  steps.no_rows_because = std::move(no_rows_because);
  steps.on_step = [&metrics, step_time](const DecodeStep& step) {
    metrics.CountRebuilt(step.again_rows);
    metrics.CountLateMasks(step.late_masks);
    if (step.prompt_rows > 0) return metrics.CountPromptRows(step.prompt_rows);
    metrics.ObserveStep(static_cast<int>(step.batch_size), step.took);
    if (step.again_rows == 0 && !step.awaited_mask)
      step_time->Took(step.took);  // the router counts on what a usual step takes
  };
  steps.on_parking = [&metrics, &report](const DecodeParking& parking) {
    metrics.SetParked(parking.parked);
    if (parking.one_more) metrics.CountParking();
    report.Update();
  };
  steps.progress = role->progress_;
  steps.grammars = std::move(grammars);
  if (lanes.has_value()) {
    steps.make_loop = [&options, &device, &metrics, steps_take, lanes = *lanes, model = model.get(),
                       host = role->host_.get(), store = role->store_.get()](Stream& stream) {
      return NewKvprLoop(options, *model, {device, *host, stream}, *store, steps_take, lanes, metrics);
    };
  }
  if (options.static_window > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(const StaticWindowSize size, StaticWindowOf(options, device));
    StaticWindowOptions windows{size, options.max_batch, /*in_codes=*/options.static_window_bits == "8"};
    windows.on_saturated = [&metrics](int64_t values) { metrics.CountSaturated(values); };
    steps.make_loop = [windows = std::move(windows), &device, model = model.get(), store = role->store_.get()](
                          Stream& stream) { return NewStaticWindowLoop(windows, *model, device, *store, stream); };
  }
  RUNAHEAD_ASSIGN_OR_RETURN(role->engine_,
                            DecodeEngine::Create(device, std::move(model), *role->store_, std::move(steps)));
  DecodeServiceOptions service;
  service.max_batch = role->max_batch_ = options.max_batch;
  service.step_time = step_time;
  service.leases_changed = [&report] { report.Update(); };
  if (lanes.has_value()) {
    service.kv_from = [demand = lanes->demand](int64_t prompt_tokens) { return demand->KvFrom(prompt_tokens); };
    service.lost_without_x = [demand = lanes->demand, layers = role->store_->options().layers](int64_t prompt_tokens) {
      return demand->LostWithoutX(prompt_tokens) * static_cast<double>(layers);
    };
  }
  role->service_ = std::make_unique<DecodeService>(*role->engine_, *role->store_, std::move(service));
  role->kept_service_ = std::make_unique<KeptKvService>(*role->store_, [&report] { report.Update(); });
  return role;
}

void DecodeRole::BeginEpoch(MessageEngine& engine) {
  store_->BeginEpoch(engine.self().epoch);
  link_receiver_ = std::make_unique<MessageHandoffReceiver>(engine, *receiver_);
  HandoffSenderOptions sender;
  const bool of_device = store_->options().tier == MemoryKind::kDevice;
  if (of_device && (moves() || lends_beginnings()) && !device_->host_reads_device_memory()) {
    sender.lane = moves_lane_ = StagingLane::Create(*device_, "moves", kMovesStagingBytes, staged_moves_progress_);
  }
  if (lends_beginnings()) {
    lender_ = std::make_unique<PrefixLender>(engine, *store_, PrefixLenderOptions{kv_form_, moves_lane_});
  }
  moves_ = std::make_shared<EpochSender>(std::make_unique<SliceSender>(MakeMessageSliceTransport(engine), sender));
}

void DecodeRole::EndEpoch() {
  if (moves_ != nullptr) moves_->End();  // null where BeginEpoch was never called
  lender_.reset();
  if (moves_lane_ != nullptr) moves_lane_->Stop();
  link_receiver_.reset();
  store_->BeginEpoch(store_->epoch() + 1);
  service_->CancelAll();
  report_->Update();
}

void DecodeRole::Move(const LeaseId& lease, const MoveTarget& target, int64_t most_tokens) {
  const absl::StatusOr<KvStore::Size> size = store_->SizeOf(lease);
  if (!size.ok()) return;
  std::vector<int64_t> hidden;
  for (const int64_t window : store_->options().windows) hidden.push_back(FirstSeen(window, size->prompt_tokens));
  engine_->Move(lease, MakeSliceCarrier(moves_, target, kv_form_, store_->options().layers, std::move(hidden)),
                most_tokens);
}

void DecodeRole::Release(const LeaseId& lease) {
  // What decodes on it gives it back itself.
  if (!engine_->CancelLease(lease)) store_->Release(lease);
  report_->Update();
}

}  // namespace runahead
