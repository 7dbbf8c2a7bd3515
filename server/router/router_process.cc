#include "server/router/router_process.h"

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/with_threads.h"
#include "server/base/address.h"
#include "server/base/clock.h"
#include "server/base/cluster_key.h"
#include "server/base/connection_metrics.h"
#include "server/base/logging.h"
#include "server/base/memory_return.h"
#include "server/base/metrics_server.h"
#include "server/base/srv_lookup.h"
#include "server/base/tls_metrics.h"
#include "server/base/tls_options.h"
#include "server/engine/engine_service.h"
#include "server/router/cache_service.h"
#include "server/router/inference_service.h"
#include "server/router/key_door.h"
#include "server/router/key_metrics.h"
#include "server/router/key_ring.h"
#include "server/router/known_index.h"
#include "server/router/live_table.h"
#include "server/router/model_info.h"
#include "server/router/otlp_exporter.h"
#include "server/router/output_forecast.h"
#include "server/router/request_memory.h"
#include "server/router/service_watch.h"
#include "server/router/worker_registry.h"
#include "server/rpc/open_door.h"
#include "server/rpc/open_door_metrics.h"
#include "server/rpc/own_echo.h"
#include "server/rpc/process_tls.h"
#include "server/rpc/server.h"
#include "server/rpc/transport_metrics.h"
#include "server/tokenizer/tokenizer_archive.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

// Clients may be far away: at a round trip of 50 ms so much carries 5 MB of a prompt a second.
constexpr int kReceiveBuffer = 256 << 10;

constexpr char kServiceName[] = "runahead.v1.Inference";
constexpr char kEngineName[] = "vllm.grpc.engine.VllmEngine";

void SayOfChats(const ModelFile& file, const absl::StatusOr<ChatTemplate>& chat_template) {
  if (!chat_template.ok()) {
    return LogWarning("model", file.path(), ": chats will be refused: ", chat_template.status().message());
  }
  const std::vector<std::string> left_out = chat_template->LeftOut();
  if (!left_out.empty()) {
    LogInfo("model", "of chats the model's template leaves out: ", absl::StrJoin(left_out, ", "));
  }
}

ReserveMode ReserveModeOf(const std::string& name) {
  return name == "full" ? ReserveMode::kFull : ReserveMode::kExpected;
}

std::map<std::string, double> WeightsOf(const std::vector<TenantSpec>& tenants) {
  std::map<std::string, double> weights;
  for (const TenantSpec& tenant : tenants) weights[tenant.name] = tenant.weight;
  return weights;
}

// Null where there are none.
struct Keys {
  std::unique_ptr<KeyMetrics> metrics;
  std::unique_ptr<KeyRing> ring;
  std::unique_ptr<KeyDoor> door;
};

absl::StatusOr<Keys> ReadKeys(const std::string& path, MetricRegistry& registry) {
  Keys keys;
  if (path.empty()) return keys;
  keys.metrics = std::make_unique<KeyMetrics>(registry);
  RUNAHEAD_ASSIGN_OR_RETURN(keys.ring, KeyRing::Open(path, *keys.metrics, RealClock()));
  keys.door = std::make_unique<KeyDoor>(*keys.ring, *keys.metrics, RealClock());
  return keys;
}

// Requests of engine calls are read as those of the public service are. Their calls to it are what counts for a key.
CallDoor EngineDoor(CallDoor door, KeyDoor* keys) {
  if (keys != nullptr) {
    door.admit = [keys](const grpc::ServerContextBase& context) { return keys->Recognize(context); };
  }
  return door;
}

// What gateways that tokenize themselves get, or why they get nothing. Its last owner waits until it is made.
using SharedArchive = absl::StatusOr<std::shared_ptr<const std::string>>;
using FutureArchive = std::shared_future<SharedArchive>;

SharedArchive ArchiveOf(const ModelFile& file) {
  absl::StatusOr<std::string> archive = TokenizerArchive(file);
  if (archive.ok()) return std::make_shared<const std::string>(*std::move(archive));
  LogWarning("model", "gateways get no tokenizer for prompts of their own: ", archive.status().message());
  return archive.status();
}

// Beside the rest of the start: of Gemma's 262,144 tokens it takes 0.6 s.
absl::StatusOr<FutureArchive> MakeArchive(std::shared_ptr<const ModelFile> file) {
  return WithThreads([&]() -> absl::StatusOr<FutureArchive> {
    return std::async(std::launch::async, [file = std::move(file)] { return ArchiveOf(*file); }).share();
  });
}

EngineParts EnginePartsOf(const RouterParts& router, FutureArchive archive, absl::Duration stall_timeout) {
  EngineParts parts{router.clock};
  parts.end_ids.assign(router.tokenizer->end_ids().begin(), router.tokenizer->end_ids().end());
  parts.begin_id = router.tokenizer->bos_id();
  parts.load = [&metrics = router.metrics]() -> EngineParts::Load {
    const int64_t waiting = metrics.queue_depth();
    return {std::max<int64_t>(0, metrics.calls_in_flight() - waiting), waiting};
  };
  parts.tokenizer_archive = [archive = std::move(archive)] { return archive.get(); };
  parts.stall_timeout = stall_timeout;
  return parts;
}

void WarnIfOpen(const RouterOptions& options, const std::string& address) {
  const absl::StatusOr<HostPort> listen = ParseHostPort(options.process.listen);
  if (listen.ok() && IsLoopback(listen->host)) return;
  if (options.api_keys.empty() && options.tls_client_auth != "require") {
    LogWarning("main", "whoever reaches ", address,
               " may use this service: give api_keys, or let nobody reach it whom you do not trust");
  }
  if (!options.api_keys.empty() && options.tls.cert.empty()) {
    LogWarning("main", "API keys come to ", address,
               " in the clear: give tls_cert and tls_key, or have something before it that speaks TLS");
  }
}

ClientAuth ClientAuthOf(const std::string& name) {
  return name == "require" ? ClientAuth::kRequire : name == "request" ? ClientAuth::kRequest : ClientAuth::kNone;
}

// Null where traces go nowhere.
std::unique_ptr<OtlpExporter> ExporterFor(const RouterOptions& options, const OtlpHeaders& headers,
                                          OtlpMetrics& metrics) {
  const absl::StatusOr<OtlpEndpoint> endpoint = ParseOtlpEndpoint(options.otlp_endpoint);
  if (!endpoint.ok()) return nullptr;  // CheckOtlp said so unless there is none
  return std::make_unique<OtlpExporter>(*endpoint, headers, metrics, RealClock());
}

std::shared_ptr<Tracer> TracerFor(const RouterOptions& options, OtlpExporter* exporter) {
  Tracer::Export exported;
  if (exporter != nullptr) exported = [exporter](WholeTrace whole) { exporter->Offer(std::move(whole)); };
  return Tracer::Create(ParseTraceMode(options.trace), static_cast<size_t>(options.traces_kept), std::move(exported));
}

// Of the clients' connections and of those to workers; null where they are not encrypted.
struct RouterTls {
  static absl::StatusOr<RouterTls> Open(const RouterOptions& options) {
    RUNAHEAD_RETURN_IF_ERROR(CheckClientAuth(options.tls, options.tls_client_auth));
    RouterTls tls;
    RUNAHEAD_ASSIGN_OR_RETURN(tls.port, ProcessTls::Open(options.tls_spec()));
    RUNAHEAD_ASSIGN_OR_RETURN(tls.cluster, ProcessTls::Open(options.process.cluster_tls_spec()));
    return tls;
  }

  std::unique_ptr<ProcessTls> port, cluster;
};

MemberAccess AccessOf(const RouterTls& tls, const RouterOptions& options, const ClusterKey& key) {
  if (tls.cluster == nullptr) return key;
  return {key, tls.cluster->credentials().ForMembersChannel(options.process.cluster_tls_name)};
}

}  // namespace

// In the order of construction; destroyed in reverse: calls end before what they use.
struct RouterProcess::Parts {
  Parts(const RouterOptions& options, const ClusterKey& key, RouterTls opened_tls, ModelInfo model,
        FutureArchive archive, std::shared_ptr<const Tokenizer> tokenizer, absl::StatusOr<ChatTemplate> chat_template,
        std::unique_ptr<LiveTable> opened, std::unique_ptr<OwnEcho> echo, std::unique_ptr<MetricRegistry> own,
        Keys api_keys, const OtlpHeaders& otlp_headers)
      : own_registry(std::move(own)),
        registry(*own_registry),
        keys(std::move(api_keys)),
        tls(std::move(opened_tls)),
        port_tls_metrics(registry, "tls"),
        cluster_tls_metrics(registry, "cluster_tls"),
        connections(registry, "grpc"),
        metrics_connections(registry, "metrics"),
        metrics(registry, model.name),
        otlp_metrics(registry),
        exporter(ExporterFor(options, otlp_headers, otlp_metrics)),
        open_metrics(registry),
        open_door(open_metrics.messages(), open_metrics.answers(), options.process.min_arrival_rate),
        memory({options.request_memory, options.process.min_arrival_rate, options.process.connection_streams}, registry,
               RealClock()),
        table(std::move(opened)),
        hearing(std::move(echo)),
        fleet(SeatsFor(options.workers), metrics, RealClock()),
        queue(fleet, options.queue_size, metrics, RealClock()),
        router{fleet,
               queue,
               sequencer,
               metrics,
               RealClock(),
               std::move(model),
               std::move(tokenizer),
               std::move(chat_template),
               *table,
               *ParseSchedule(options.schedule),
               options.experiments,
               TracerFor(options, exporter.get()),
               options.log_prompts,
               options.absence_timeout,
               WeightsOf(options.tenants),
               std::make_unique<OutputForecast>(ReserveModeOf(options.reserve)),
               std::make_unique<KnownIndex>(options.known_beginnings == "on", fleet, metrics)},
        workers(fleet, sequencer, router.model, options.dtype, RealClock(), AccessOf(tls, options, key), *hearing,
                router.known.get()),
        membership(
            fleet.workers(),
            [server = options.dns_server](const std::string& service) { return LookUpSrv(service, server); }, workers,
            options.dns_period, RealClock()),
        service(router, {options.max_sessions, options.stall_timeout, options.max_streams}, memory.door(),
                keys.door.get()),
        cache(router, memory.door(), keys.door.get()),
        engine(EnginePartsOf(router, std::move(archive), options.stall_timeout),
               EngineDoor(memory.door(), keys.door.get())) {}

  MemoryReturn returned;
  const std::unique_ptr<MetricRegistry> own_registry;
  MetricRegistry& registry;
  Keys keys;
  RouterTls tls;
  TlsMetrics port_tls_metrics, cluster_tls_metrics;
  ConnectionMetrics connections, metrics_connections;
  RouterMetrics metrics;
  OtlpMetrics otlp_metrics;
  std::unique_ptr<OtlpExporter> exporter;  // which sends, at its end, what all below have left to it
  OpenDoorMetrics open_metrics;
  OpenDoor open_door;
  RequestMemory memory;
  std::unique_ptr<LiveTable> table;
  std::unique_ptr<OwnEcho> hearing;
  Fleet fleet;
  FleetQueue queue;
  Sequencer sequencer;
  RouterParts router;
  WorkerRegistry workers;
  ServiceWatch membership;
  InferenceService service;
  CacheService cache;
  EngineService engine;
  std::unique_ptr<RpcServer> server;
  std::unique_ptr<MetricsServer> metrics_server;
  std::optional<bool> serving;  // as health was told last
};

RouterProcess::RouterProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
RouterProcess::~RouterProcess() = default;

absl::StatusOr<std::unique_ptr<RouterProcess>> RouterProcess::Start(const RouterOptions& options) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWorkers(options.workers));
  RUNAHEAD_RETURN_IF_ERROR(CheckTenants(options));
  RUNAHEAD_RETURN_IF_ERROR(CheckOtlp(options));
  RUNAHEAD_ASSIGN_OR_RETURN(const OtlpHeaders otlp_headers, ReadOtlpHeaders(options.otlp_headers));
  RUNAHEAD_ASSIGN_OR_RETURN(const ClusterKey key, ClusterKey::Read(options.process.cluster_key));
  auto registry = std::make_unique<MetricRegistry>("none");
  RUNAHEAD_ASSIGN_OR_RETURN(Keys keys, ReadKeys(options.api_keys, *registry));
  RUNAHEAD_ASSIGN_OR_RETURN(RouterTls tls, RouterTls::Open(options));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const ModelFile> file, OpenModelFile(options.model));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::FromModel(*file));
  RUNAHEAD_ASSIGN_OR_RETURN(ModelInfo model, ReadModelInfo(*file));
  RUNAHEAD_ASSIGN_OR_RETURN(FutureArchive archive, MakeArchive(file));
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::FromModel(*file, *tokenizer);
  SayOfChats(*file, chat_template);
  if (chat_template.ok()) {
    model.advice.tool_format = chat_template->ToolFormat(*tokenizer, model.advice.tool_format);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<LiveTable> table, LiveTable::Open(options.table, model));
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<OwnEcho> hearing, OwnEcho::Create());
  LogInfo("model", model.name, ": context ", model.context_length, ", vocabulary ", model.vocabulary_size);
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<Parts> parts, WithThreads([&]() -> absl::StatusOr<std::unique_ptr<Parts>> {
                              return std::make_unique<Parts>(
                                  options, key, std::move(tls), std::move(model), std::move(archive),
                                  std::move(tokenizer), std::move(chat_template), std::move(table), std::move(hearing),
                                  std::move(registry), std::move(keys), otlp_headers);
                            }));
  RpcServerOptions rpc;
  rpc.listen = options.process.listen;
  rpc.keep_alive = kPublicKeepAlive;
  rpc.services = {&parts->service, &parts->cache, &parts->engine};
  rpc.health_names = {kServiceName, kEngineName};
  rpc.port = PortOptionsOf(options.process, parts->connections);
  rpc.port.receive_buffer = kReceiveBuffer;
  rpc.limits = {options.process.connection_streams, options.request_memory / 2, /*read_ahead=*/false};
  CountPortLimits(parts->registry, rpc.limits, options.process.min_arrival_rate);
  rpc.open_door = &parts->open_door;
  rpc.channelz = options.process.channelz;
  if (parts->tls.port != nullptr) {
    rpc.credentials = parts->tls.port->credentials().ForServer(ClientAuthOf(options.tls_client_auth));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(parts->server, RpcServer::Start(rpc));
  parts->service.SetGate(&parts->server->gate());
  parts->cache.SetGate(&parts->server->gate());
  parts->engine.Connect(parts->server->InProcessChannel(), parts->server->gate(),
                        [server = parts->server.get()] { return server->serving().ok(); });
  const auto health = [server = parts->server.get()] { return server->port_status(); };
  const auto ready = [server = parts->server.get()] { return server->serving(); };
  RUNAHEAD_ASSIGN_OR_RETURN(parts->metrics_server, MetricsServer::Start(options.process.metrics_listen, parts->registry,
                                                                        {health, &parts->metrics_connections, ready}));
  LogInfo("main", "listening on ", parts->server->address(), ", metrics on ", parts->metrics_server->address());
  WarnIfOpen(options, parts->server->address());
  return std::unique_ptr<RouterProcess>(new RouterProcess(std::move(parts)));
}

const std::string& RouterProcess::address() const {
  return parts_->server->address();
}
const std::string& RouterProcess::metrics_address() const {
  return parts_->metrics_server->address();
}

void RouterProcess::UpdateHealth() {
  const bool serving = parts_->fleet.ready_prefill() > 0 && parts_->fleet.ready_decode() > 0;
  if (parts_->serving == serving) return;
  parts_->serving = serving;
  parts_->server->SetServing(serving);
  LogInfo("main", serving ? "serving" : "not serving: no prefill or no decode worker is ready");
}

void RouterProcess::UpdateEjections() {
  parts_->fleet.ejections().Update();
}

void RouterProcess::UpdateTable() {
  parts_->table->Poll(RealClock().Now(), parts_->metrics);
  const auto doubt = parts_->table->DoubtOf(parts_->fleet.capabilities().compute_dtype());
  if (doubt) LogWarning("table", *doubt);
}

void RouterProcess::UpdateKeys() {
  if (parts_->keys.ring != nullptr) parts_->keys.ring->Poll(RealClock().Now());
}

void RouterProcess::UpdateMemory() {
  parts_->memory.Update();
  parts_->returned.Poll(RealClock().Now());
}

void RouterProcess::UpdateTls() {
  const absl::Time now = absl::Now();
  if (parts_->tls.port != nullptr) parts_->tls.port->Poll(now, parts_->port_tls_metrics);
  if (parts_->tls.cluster != nullptr) parts_->tls.cluster->Poll(now, parts_->cluster_tls_metrics);
}

void RouterProcess::Drain(absl::Duration timeout) {
  const auto cut = [&] {
    LogWarning("main", "requests are cut off after ", absl::FormatDuration(timeout));
    parts_->service.CutOff(
        absl::UnavailableError("this router stopped after its drain timeout; send the request again"));
  };
  parts_->server->Drain(timeout, cut);
}

}  // namespace runahead
