#include "worker/worker_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/with_threads.h"
#include "server/base/address.h"
#include "server/base/clock.h"
#include "server/base/cluster_key.h"
#include "server/base/connection_metrics.h"
#include "server/base/logging.h"
#include "server/base/memory_limit.h"
#include "server/base/metrics_server.h"
#include "server/base/random.h"
#include "server/base/tls_metrics.h"
#include "server/rpc/open_door.h"
#include "server/rpc/open_door_metrics.h"
#include "server/rpc/own_echo.h"
#include "server/rpc/process_tls.h"
#include "server/rpc/server.h"
#include "server/rpc/transport_metrics.h"
#include "worker/batch_default.h"
#include "worker/decode_role.h"
#include "worker/device_factory.h"
#include "worker/format/model_file.h"
#include "worker/kvpr_decode.h"
#include "worker/link/link_host.h"
#include "worker/link/tcp/tcp_engine.h"
#include "worker/memory_defaults.h"
#include "worker/metrics/weight_metrics.h"
#include "worker/model/grammar_source.h"
#include "worker/model/warm_up.h"
#include "worker/model/weights_hash.h"
#include "worker/model_facts.h"
#include "worker/prefill_role.h"
#include "worker/prompt_rows.h"
#include "worker/service/control_service.h"
#include "worker/service/keyed_services.h"
#include "worker/weight_sharing.h"
#include "worker/worker_epoch.h"

namespace runahead {
namespace {

// Before the model is loaded: that takes long, and what is wrong here can be said at once.
absl::StatusOr<std::string> LinkHostOf(const WorkerOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.process.listen));
  const bool given = !options.link_host.empty();
  absl::StatusOr<std::string> host = LinkHost(given ? options.link_host : listen.host);
  if (host.ok() && options.process.cluster_key.empty() && !IsLoopback(*host)) return NeedsKey("link_host", *host);
  if (host.ok()) return host;
  return absl::Status(host.status().code(), absl::StrCat(given ? "link_host: " : "listen: ", host.status().message()));
}

// The router's commands go to the epoch; the end of its stream ends it, and begins the next.
class Epochs : public ControlHandler {
 public:
  absl::Status Begin(const EpochParts& parts) {
    parts_ = &parts;
    RUNAHEAD_ASSIGN_OR_RETURN(epoch_, WithThreads([&] { return WorkerEpoch::Begin(parts, number_); }));
    return absl::OkStatus();
  }
  void End() { epoch_.reset(); }
  const WorkerEpoch& current() const { return *epoch_; }

  void OnFormLine(const v1::FormLine& line) override { epoch_->OnFormLine(line); }
  void OnStart(const v1::StartJob& start) override { epoch_->OnStart(start); }
  void OnCancel(uint64_t job) override { epoch_->OnCancel(job); }
  void OnRelease(const v1::LeaseId& lease) override { epoch_->OnRelease(lease); }
  void OnMove(const v1::MoveSequence& move) override { epoch_->OnMove(move); }
  void OnPing() override { epoch_->OnPing(); }
  absl::StatusOr<v1::Capabilities> OnRouterGone() override {
    if (epoch_ != nullptr) {
      LogWarning("control", "the router's control stream ended: its jobs, edges and leases end with epoch ", number_);
      epoch_.reset();
      ++number_;
    }
    RUNAHEAD_ASSIGN_OR_RETURN(epoch_, WithThreads([&] { return WorkerEpoch::Begin(*parts_, number_); }));
    return epoch_->capabilities();
  }

 private:
  const EpochParts* parts_ = nullptr;
  uint32_t number_ = 0;
  std::unique_ptr<WorkerEpoch> epoch_;  // null between two
};

std::string TokenizerFingerprint(const ModelFile& file) {
  return absl::StrCat(absl::Hex(file.tokenizer_fingerprint(), absl::kZeroPad16));
}

unsigned UsesOf(const WorkerOptions& options) {
  return (options.prefill() ? kUsePrefill : 0u) | (options.decode() ? kUseDecode : 0u);
}

// Hashing and copying of frames and slices, by bytes: at no host slower than this. Nothing is compiled for it.
void ExpectBytes(ProgressMeter& meter) {
  meter.Expect(1 << 20, absl::Milliseconds(10), /*compiles=*/false);
}

}  // namespace

// In the order of construction. ~WorkerProcess ends them in another order, and says why.
struct WorkerProcess::Parts {
  explicit Parts(const WorkerOptions& of_process) : options(of_process) {}
  WorkerOptions options;  // LoadModelFor puts defaults in place of sizes that are 0; then they stay
  ClusterKey key;
  std::unique_ptr<ProcessTls> tls;    // null: nothing is encrypted
  std::shared_ptr<LinkTls> link_tls;  // likewise
  std::string link_host;
  std::shared_ptr<Device> device;
  std::unique_ptr<PeerCommFactory> peer_comms;    // null on the CPU
  std::shared_ptr<SharedWeights> shared_weights;  // null: none
  std::shared_ptr<const Model> model;
  PromptRows prompt_rows;
  int64_t step_rows = 0;
  WarmUpTimes warm_up;
  ModelFingerprints fingerprints;
  std::shared_ptr<GrammarSource> grammars;
  std::unique_ptr<MetricRegistry> metrics;
  std::unique_ptr<WeightMetrics> weight_metrics;
  std::unique_ptr<TlsMetrics> port_tls_metrics, tls_metrics;
  std::unique_ptr<ConnectionMetrics> connections, metrics_connections;
  std::unique_ptr<DecodeRole> decode;  // null unless it decodes
  std::unique_ptr<EpochParts> for_epochs;
  Epochs epochs;
  std::unique_ptr<OwnEcho> hearing;
  std::unique_ptr<ControlService> control;
  std::unique_ptr<OpenDoorMetrics> open_metrics;
  std::unique_ptr<OpenDoor> open_door;
  std::unique_ptr<MemberDoor> door;
  std::unique_ptr<KeyedWorker> keyed_control;
  std::unique_ptr<KeyedDecode> keyed_decode;
  std::unique_ptr<KeyedKeptKv> keyed_kept;
  std::unique_ptr<RpcServer> server;
  std::unique_ptr<MetricsServer> metrics_server;

  absl::Status LoadModelFor();
  // Loads the model while its bytes are summed.
  absl::Status LoadAndSum(const std::shared_ptr<const ModelFile>& file, const ModelConfig& of_file);
  // On the device, or streamed from host memory, by decode_schedule.
  absl::StatusOr<std::shared_ptr<const Model>> LoadBySchedule(const std::shared_ptr<const ModelFile>& file,
                                                              const ModelConfig& of_file);
  // Of the tokenizer that the model's file had when it was loaded.
  absl::StatusOr<std::shared_ptr<GrammarSource>> MakeGrammars() const;
  absl::Status ChooseBatch();
  absl::Status ChooseStepRows();
  absl::Status StartRoles();
  // What hangs is known as such from the first layer, step or slice on: the start has measured what one takes.
  void ExpectProgress() const;
  std::vector<NamedMeter> Meters() const;
  absl::Status Serve();
};

absl::Status WorkerProcess::Parts::LoadModelFor() {
  if (options.kv_memory == 0) options.kv_memory = DefaultMemory(kWantedKvMemory, UsableMemory());
  // What is wrong with the device is said before what is wrong with the file.
  absl::StatusOr<OpenedModel> opened_model = OpenModel(options.model);
  RUNAHEAD_ASSIGN_OR_RETURN(OpenedDevice opened,
                            OpenDevice(options, opened_model.ok() ? opened_model->facts : ModelFacts{}));
  device = std::move(opened.device);
  peer_comms = std::move(opened.peer_comms);
  shared_weights = std::move(opened.shared_weights);
  if (options.decode()) RUNAHEAD_RETURN_IF_ERROR(CheckKvprOptions(options, *device));
  RUNAHEAD_ASSIGN_OR_RETURN(const OpenedModel opened_file, std::move(opened_model));
  for (const std::string& remark : opened_file.file->remarks()) LogWarning("model", remark);
  RUNAHEAD_ASSIGN_OR_RETURN(const ModelConfig of_file, ReadModelConfig(*opened_file.file));
  for (const std::string& remark : of_file.remarks) LogWarning("model", remark);
  if (const std::string slow = device->SlowHeads(of_file.head_dim); !slow.empty()) LogWarning("model", slow);
  if (const bool int8 = device->numerics() == "int8"; int8 || options.decode()) {
    RUNAHEAD_ASSIGN_OR_RETURN(const LoadPlan plan, PlanLoading(opened_file.file));
    const std::string left_out = int8 ? LeftOutOfInt8(plan, UsesOf(options)) : "";
    if (!left_out.empty()) LogWarning("model", left_out);
    if (options.decode()) prompt_rows = ChoosePromptRows(options, *device, plan, UsableMemory());
  }
  RUNAHEAD_RETURN_IF_ERROR(LoadAndSum(opened_file.file, of_file));
  if (options.prefill_memory == 0) options.prefill_memory = PrefillRole::DefaultMemory(*model, *device);
  RUNAHEAD_ASSIGN_OR_RETURN(warm_up, WarmUp(*model, *device, UsesOf(options)));
  if (options.decode() && options.max_batch == 0) RUNAHEAD_RETURN_IF_ERROR(ChooseBatch());
  if (options.decode()) RUNAHEAD_RETURN_IF_ERROR(ChooseStepRows());
  const ModelConfig& config = model->config();
  LogInfo("model", config.name, ": ", config.layers, " layers, ", config.hidden, " hidden, ", config.heads, "/",
          config.kv_heads, " heads, context ", config.context_length);
  LogInfo("model", WeightsText(model->weight_bytes(), opened_file.facts.tensor_bytes));
  return absl::OkStatus();
}

absl::Status WorkerProcess::Parts::ChooseBatch() {
  options.max_batch = kTimedBatch;
  // What more sequences take of a step's memory is bounded there, and not reckoned with here.
  const bool bounded = device->has_host_link() || options.static_window > 0 || options.device_memory_budget > 0;
  if (bounded) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(const absl::Duration timed, TimeStep(*model, *device, kTimedBatch));
  const int64_t capacity_tokens = options.kv_memory / (model->config().layers * model->kv_row_bytes());
  options.max_batch = DefaultBatch(capacity_tokens, warm_up.step, timed);
  LogInfo("decode", "steps take up to ", options.max_batch, " sequences (max_batch): kv_memory holds ", capacity_tokens,
          " tokens, a step of ", kTimedBatch, " takes ",
          absl::FormatDuration(absl::Trunc(timed, absl::Microseconds(10))));
  return absl::OkStatus();
}

absl::Status WorkerProcess::Parts::ChooseStepRows() {
  if (!prompt_rows.computed) {
    LogInfo("decode", "steps compute no tokens of prompts (step_rows): ", prompt_rows.because);
    return absl::OkStatus();
  }
  RUNAHEAD_ASSIGN_OR_RETURN(step_rows, MeasureStepRows(*model, *device, prompt_rows.asked));
  LogInfo("decode", "steps compute up to ", step_rows,
          " tokens of prompts beside what they decode (step_rows); of the weights ", prompt_rows.weight_bytes,
          " bytes are for them alone");
  return absl::OkStatus();
}

absl::Status WorkerProcess::Parts::LoadAndSum(const std::shared_ptr<const ModelFile>& file,
                                              const ModelConfig& of_file) {
  WeightsHash hash(file);
  RUNAHEAD_ASSIGN_OR_RETURN(model, LoadBySchedule(file, of_file));
  fingerprints = {.files = of_file.fingerprint,
                  .weights = hash.Wait(),
                  .tokenizer = TokenizerFingerprint(*file),
                  .chat_template = absl::StrCat(absl::Hex(file->chat_template_fingerprint(), absl::kZeroPad16))};
  LogInfo("model", "weights_fingerprint ", fingerprints.weights);
  if (shared_weights == nullptr) return absl::OkStatus();
  const absl::Status shared = CompleteSharing(*shared_weights, fingerprints.weights);
  if (!absl::IsFailedPrecondition(shared)) return shared;
  LogWarning("model", "shared_weights: the weights are this worker's own: ", std::string(shared.message()));
  model = nullptr;
  shared_weights->Abandon();
  shared_weights = nullptr;
  RUNAHEAD_ASSIGN_OR_RETURN(model, LoadBySchedule(file, of_file));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Model>> WorkerProcess::Parts::LoadBySchedule(
    const std::shared_ptr<const ModelFile>& file, const ModelConfig& of_file) {
  const auto load = [&](bool streamed) {
    const unsigned uses = UsesOf(options) | (prompt_rows.computed ? kUsePrefill : 0u) |
                          RecomputeUses(options, of_file, *device, streamed) | (streamed ? kUseStreamed : 0u);
    int tenths_logged = 0;
    const auto progress = [&](int done, int total) {
      if (done * 10 / total == tenths_logged) return;
      tenths_logged = done * 10 / total;
      LogInfo("model", "loading ", options.model, ": ", 10 * tenths_logged, "%");
    };
    return LoadModel(file, device, uses, progress);
  };
  if (options.decode_schedule == "throughput") return load(true);
  absl::StatusOr<std::shared_ptr<const Model>> resident = load(false);
  if (!absl::IsResourceExhausted(resident.status()) || !MayStreamWeights(options, *device)) return resident;
  LogInfo("model", "the weights stay in host memory, from where every step brings them over (decode_schedule): ",
          std::string(resident.status().message()));
  if (shared_weights != nullptr) shared_weights->Abandon();
  shared_weights = nullptr;
  return load(true);
}

absl::StatusOr<std::shared_ptr<GrammarSource>> WorkerProcess::Parts::MakeGrammars() const {
  const auto open = [path = options.model,
                     meant = fingerprints.tokenizer]() -> absl::StatusOr<std::shared_ptr<const Tokenizer>> {
    RUNAHEAD_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(path));
    if (TokenizerFingerprint(*opened.file) == meant) return Tokenizer::FromModel(*opened.file);
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has another vocabulary than the one that this worker loaded: start the worker again"));
  };
  return WithThreads([&]() -> absl::StatusOr<std::shared_ptr<GrammarSource>> {
    return std::make_shared<GrammarSource>(open, model->config().vocab);
  });
}

absl::Status WorkerProcess::Parts::StartRoles() {
  RUNAHEAD_ASSIGN_OR_RETURN(grammars, MakeGrammars());
  metrics = std::make_unique<MetricRegistry>(std::string(device->name()));
  weight_metrics = std::make_unique<WeightMetrics>(*metrics);
  weight_metrics->SetBytes(model->weight_bytes());
  port_tls_metrics = std::make_unique<TlsMetrics>(*metrics, "tls");  // a router's; so that every process has both
  tls_metrics = std::make_unique<TlsMetrics>(*metrics, "cluster_tls");
  const uint64_t incarnation = RandomBits64();
  // Before decode, which chooses by what is left where its KV is kept.
  std::shared_ptr<Buffer> prefill_memory;
  if (options.prefill()) {
    RUNAHEAD_ASSIGN_OR_RETURN(prefill_memory, PrefillRole::AllocateMemory(options, *device));
  }
  if (options.decode()) {
    RUNAHEAD_ASSIGN_OR_RETURN(decode, DecodeRole::Create(options, *device, model, incarnation, step_rows,
                                                         prompt_rows.because, grammars, *metrics));
  }
  for_epochs = std::make_unique<EpochParts>(
      EpochParts{options, key, link_tls, link_host, incarnation, *device, peer_comms.get(), model, fingerprints,
                 std::move(prefill_memory), decode.get(), *metrics,
                 [this](v1::ControlReport report) { control->Report(std::move(report)); }, grammars});
  if (link_tls != nullptr && peer_comms != nullptr) {
    LogWarning("link",
               "NCCL does not encrypt: KV goes in the clear from GPU to GPU, on this host or between hosts, for "
               "cluster_tls_cert covers what goes over TCP. Keep such hosts on a network of their own");
  }
  ExpectProgress();
  return epochs.Begin(*for_epochs);
}

void WorkerProcess::Parts::ExpectProgress() const {
  const bool compiles = !device->host_reads_device_memory();  // a GPU: the first of a size may load its kernels
  const PrefillProgress& prefill = for_epochs->prefill_progress;
  if (warm_up.layer > absl::ZeroDuration()) {
    prefill.stage->Expect(LayerWork(warm_up.tokens, warm_up.tokens), warm_up.layer, compiles);
  }
  for (const auto& moving : {prefill.staging.sending, prefill.staging.receiving, prefill.staged_handoff,
                             prefill.staged_prefix, prefill.copies, prefill.prefix_copies}) {
    ExpectBytes(*moving);
  }
  if (decode == nullptr) return;
  ExpectBytes(*decode->arrival_progress());
  ExpectBytes(*decode->staged_moves_progress());
  // Over a link a step's time is the KV's that is brought, which the warm-up has none of.
  if (warm_up.step > absl::ZeroDuration()) {
    decode->progress()->Expect(StepWork(1, 1), warm_up.step, compiles || decode->lane_profile().has_value());
  }
}

std::vector<NamedMeter> WorkerProcess::Parts::Meters() const {
  std::vector<NamedMeter> meters = {{"links", for_epochs->links_progress}};
  if (options.prefill()) {
    const PrefillProgress& prefill = for_epochs->prefill_progress;
    meters.push_back({"prefill", prefill.stage});
    if (!device->host_reads_device_memory()) {
      meters.push_back({"staging of what is sent", prefill.staging.sending});
      meters.push_back({"staging of what has come", prefill.staging.receiving});
      meters.push_back({"staging of hand-off", prefill.staged_handoff});
      meters.push_back({"staging of a prefix", prefill.staged_prefix});
    }
    meters.push_back({"copies", prefill.copies});
    meters.push_back({"prefix copies", prefill.prefix_copies});
  }
  if (decode != nullptr) {
    meters.push_back({"decode", decode->progress()});
    meters.push_back({"arrival", decode->arrival_progress()});
    if (!device->host_reads_device_memory()) {
      meters.push_back({"staging of moves", decode->staged_moves_progress()});
    }
  }
  return meters;
}

absl::Status WorkerProcess::Parts::Serve() {
  ControlService::DecodeLoadReader decode_load;
  if (decode != nullptr) decode_load = [this](uint64_t heard) { return decode->service().Load(heard); };
  RUNAHEAD_ASSIGN_OR_RETURN(hearing, OwnEcho::Create());
  control = std::make_unique<ControlService>(epochs.current().capabilities(), epochs, RealClock(), Meters(),
                                             std::move(decode_load), *hearing);
  connections = std::make_unique<ConnectionMetrics>(*metrics, "grpc");
  metrics_connections = std::make_unique<ConnectionMetrics>(*metrics, "metrics");
  RpcServerOptions rpc;
  rpc.listen = options.process.listen;
  rpc.channelz = options.process.channelz;
  if (tls != nullptr) rpc.credentials = tls->credentials().ForMembersServer(options.process.cluster_tls_name);
  rpc.port = PortOptionsOf(options.process, *connections);
  rpc.limits.connection_streams = options.process.connection_streams;
  CountPortLimits(*metrics, rpc.limits, options.process.min_arrival_rate);
  ShowFixedLimit(*metrics, "unproved_links", static_cast<double>(MostStrangers({})));
  open_metrics = std::make_unique<OpenDoorMetrics>(*metrics);
  open_door =
      std::make_unique<OpenDoor>(open_metrics->messages(), open_metrics->answers(), options.process.min_arrival_rate);
  rpc.open_door = open_door.get();
  door = std::make_unique<MemberDoor>(key, *open_door);
  rpc.services.push_back(door.get());
  keyed_control = std::make_unique<KeyedWorker>(*door, *control);
  rpc.services.push_back(keyed_control.get());
  rpc.health_names.push_back("runahead.v1.Worker");
  if (decode != nullptr) {
    keyed_decode = std::make_unique<KeyedDecode>(*door, decode->service());
    rpc.services.push_back(keyed_decode.get());
    rpc.health_names.push_back("runahead.v1.Decode");
    keyed_kept = std::make_unique<KeyedKeptKv>(*door, decode->kept_service());
    rpc.services.push_back(keyed_kept.get());
  }
  RUNAHEAD_ASSIGN_OR_RETURN(server, RpcServer::Start(rpc));
  if (decode != nullptr) decode->service().SetGate(server->gate());
  RUNAHEAD_ASSIGN_OR_RETURN(metrics_server,
                            MetricsServer::Start(options.process.metrics_listen, *metrics,
                                                 {[this] { return server->port_status(); }, metrics_connections.get(),
                                                  [this] { return server->serving(); }}));
  server->SetServing(true);
  LogInfo("main", "serving on ", server->address(), ", metrics on ", metrics_server->address());
  return absl::OkStatus();
}

WorkerProcess::WorkerProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

// The control stream ends first, and with it the epoch. The roles go before the control service, for the last jobs
// still report to it.
WorkerProcess::~WorkerProcess() {
  parts_->metrics_server.reset();
  parts_->server.reset();
  parts_->control->Stop();
  parts_->epochs.End();
  parts_->decode.reset();
}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const WorkerOptions& options) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWorkerOptions(options));
  auto parts = std::make_unique<Parts>(options);
  RUNAHEAD_ASSIGN_OR_RETURN(parts->key, ClusterKey::Read(options.process.cluster_key));
  RUNAHEAD_ASSIGN_OR_RETURN(parts->tls, ProcessTls::Open(options.process.cluster_tls_spec()));
  if (parts->tls != nullptr) {
    parts->link_tls = std::make_shared<LinkTls>(options.process.cluster_tls_name);
    RUNAHEAD_RETURN_IF_ERROR(
        parts->tls->Follow([links = parts->link_tls](const TlsMaterial& material) { return links->Use(material); }));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(parts->link_host, LinkHostOf(options));
  RUNAHEAD_RETURN_IF_ERROR(parts->LoadModelFor());
  RUNAHEAD_RETURN_IF_ERROR(parts->StartRoles());
  RUNAHEAD_RETURN_IF_ERROR(parts->Serve());
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(std::move(parts)));
}

const std::string& WorkerProcess::address() const {
  return parts_->server->address();
}
const std::string& WorkerProcess::metrics_address() const {
  return parts_->metrics_server->address();
}

absl::Status WorkerProcess::CheckWeights() const {
  return parts_->shared_weights == nullptr ? absl::OkStatus() : parts_->shared_weights->CheckMark();
}

void WorkerProcess::UpdateTls() {
  if (parts_->tls != nullptr) parts_->tls->Poll(absl::Now(), *parts_->tls_metrics);
}

void WorkerProcess::Drain(absl::Duration timeout) {
  const absl::Time until = RealClock().Now() + timeout;
  parts_->server->SetServing(false);
  if (parts_->decode != nullptr) parts_->decode->service().StopReserving();
  LogInfo("main", "drains: nothing new is planned here, what runs may take ", absl::FormatDuration(timeout));
  if (!parts_->control->Drain(timeout)) {
    LogWarning("main", "requests are cut off after ", absl::FormatDuration(timeout));
  }
  parts_->server->Drain(until - RealClock().Now());
}

}  // namespace runahead
