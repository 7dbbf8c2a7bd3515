#include "worker/decode_role.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "worker/decode/step_memory.h"
#include "worker/kv/tier_choice.h"

namespace runahead {
namespace {

KvStoreOptions StoreOptions(const WorkerOptions& options, const Model& model, uint64_t incarnation) {
  KvStoreOptions store;
  store.layers = model.config().layers;
  store.row_bytes = model.kv_row_bytes();
  store.capacity_tokens = options.kv_memory / (store.layers * store.row_bytes);
  store.incarnation = incarnation;
  return store;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeRole>> DecodeRole::Create(const WorkerOptions& options, Device& device,
                                                               std::shared_ptr<const Model> model, uint64_t incarnation,
                                                               MetricRegistry& registry) {
  std::unique_ptr<DecodeRole> role(new DecodeRole);
  role->metrics_ = std::make_unique<DecodeMetrics>(registry);
  DecodeMetrics& metrics = *role->metrics_;
  const KvStoreOptions wanted = StoreOptions(options, *model, incarnation);
  const size_t steps_take = DecodeStepBytes(model->config(), options.max_batch, wanted.capacity_tokens);
  auto store = CreateStoreWhereItFits(wanted, steps_take, device, RealClock());
  if (!store.ok()) {
    return absl::Status(store.status().code(), absl::StrCat("kv_memory: ", store.status().message()));
  }
  role->store_ = *std::move(store);
  if (!device.host_reads_device_memory()) {
    const bool on_card = role->store_->options().tier == MemoryKind::kDevice;
    LogInfo("decode", "KV is kept ", on_card ? "on the card" : "in host memory: kv_memory does not fit on the card");
  }
  role->report_ = std::make_unique<StoreReport>(*role->store_, metrics);
  StoreReport& report = *role->report_;
  report.Update();
  role->reaper_ = std::make_unique<LeaseReaper>(*role->store_, RealClock(), [&report](int) { report.Update(); });

  SliceReceiverOptions slices;
  slices.dtype = model->kv_dtype();
  slices.on_corrupt = [&metrics] { metrics.CountChecksumFailure(); };
  role->receiver_ = std::make_unique<SliceReceiver>(*role->store_, slices);
  role->handoff_service_ = std::make_unique<GrpcHandoffService>(*role->receiver_);

  DecodeEngineOptions steps;
  steps.max_batch = options.max_batch;
  steps.on_step = [&metrics](const DecodeStep& step) {
    metrics.ObserveStep(static_cast<int>(step.batch_size), step.took);
  };
  RUNAHEAD_ASSIGN_OR_RETURN(role->engine_,
                            DecodeEngine::Create(device, std::move(model), *role->store_, std::move(steps)));
  DecodeServiceOptions service;
  service.leases_changed = [&report] { report.Update(); };
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
  store_->Release(lease);
  report_->Update();
}

}  // namespace runahead
