#include "server/router/router_process.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/base/clock.h"
#include "server/base/cluster_key.h"
#include "server/base/connection_metrics.h"
#include "server/base/logging.h"
#include "server/base/memory_return.h"
#include "server/base/metrics_server.h"
#include "server/base/srv_lookup.h"
#include "server/router/inference_service.h"
#include "server/router/live_table.h"
#include "server/router/request_memory.h"
#include "server/router/service_watch.h"
#include "server/router/worker_registry.h"
#include "server/rpc/server.h"
#include "worker/format/gguf_split.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

constexpr char kServiceName[] = "runahead.v1.Inference";

// "/models/some-model.Q4_1.gguf" -> "some-model.Q4_1"
std::string AliasOf(const std::string& path) {
  return WithoutGgufEnding(path.substr(path.rfind('/') + 1));
}

absl::StatusOr<ModelInfo> ReadModelInfo(const ModelFile& file, const Tokenizer& tokenizer) {
  ModelInfo model;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string architecture, file.GetString("general.architecture"));
  if (file.Has("general.name")) {
    RUNAHEAD_ASSIGN_OR_RETURN(model.name, file.GetString("general.name"));
  }
  if (model.name.empty()) model.name = architecture;
  RUNAHEAD_ASSIGN_OR_RETURN(const uint64_t context, file.GetUint(absl::StrCat(architecture, ".context_length")));
  if (context < 1 || context > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", architecture, ".context_length: ", context,
                                                   " is not a length that can be served"));
  }
  model.context_length = static_cast<int>(context);
  // A tokenizer may have tokens that were added without a row in the model's table.
  RUNAHEAD_ASSIGN_OR_RETURN(const FileTensor* table, file.FindTensor("token_embd.weight"));
  model.vocabulary_size = static_cast<int>(std::min(tokenizer.vocab_size(), table->rows()));
  model.fingerprint = absl::StrFormat("%016x", file.fingerprint());
  model.tokenizer_fingerprint = absl::StrFormat("%016x", file.tokenizer_fingerprint());
  model.chat_template_fingerprint = absl::StrFormat("%016x", file.chat_template_fingerprint());
  model.alias = AliasOf(file.path());
  return model;
}

}  // namespace

// In the order of construction; destroyed in reverse: calls end before what they use.
struct RouterProcess::Parts {
  Parts(const RouterOptions& options, const ClusterKey& key, ModelInfo model,
        std::shared_ptr<const Tokenizer> tokenizer, absl::StatusOr<ChatTemplate> chat_template,
        std::unique_ptr<LiveTable> opened)
      : registry("none"),
        connections(registry, "grpc"),
        metrics_connections(registry, "metrics"),
        metrics(registry, model.name),
        memory(options.request_memory, registry, RealClock()),
        table(std::move(opened)),
        fleet(SeatsFor(options.workers), options.queue_size, metrics, RealClock()),
        router{fleet,
               sequencer,
               metrics,
               RealClock(),
               std::move(model),
               std::move(tokenizer),
               std::move(chat_template),
               *table,
               *ParseSchedule(options.schedule),
               options.experiments,
               Tracer::Create(ParseTraceMode(options.trace), static_cast<size_t>(options.traces_kept)),
               options.log_prompts,
               options.absence_timeout},
        workers(fleet, sequencer, router.model, options.dtype, RealClock(), key),
        membership(
            fleet.workers(),
            [server = options.dns_server](const std::string& service) { return LookUpSrv(service, server); }, workers,
            options.dns_period, RealClock()),
        service(router, {options.max_sessions, options.stall_timeout, options.max_streams}, memory.door()) {}

  MemoryReturn returned;
  MetricRegistry registry;
  ConnectionMetrics connections, metrics_connections;
  RouterMetrics metrics;
  RequestMemory memory;
  std::unique_ptr<LiveTable> table;
  Fleet fleet;
  Sequencer sequencer;
  RouterParts router;
  WorkerRegistry workers;
  ServiceWatch membership;
  InferenceService service;
  std::unique_ptr<RpcServer> server;
  std::unique_ptr<MetricsServer> metrics_server;
  std::optional<bool> serving;  // as health was told last
};

RouterProcess::RouterProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
RouterProcess::~RouterProcess() = default;

absl::StatusOr<std::unique_ptr<RouterProcess>> RouterProcess::Start(const RouterOptions& options) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWorkers(options.workers));
  RUNAHEAD_ASSIGN_OR_RETURN(const ClusterKey key, ClusterKey::Read(options.process.cluster_key));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const ModelFile> file, OpenModelFile(options.model));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::FromModel(*file));
  RUNAHEAD_ASSIGN_OR_RETURN(ModelInfo model, ReadModelInfo(*file, *tokenizer));
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::FromModel(*file, *tokenizer);
  if (!chat_template.ok()) LogWarning("model", "chats will be refused: ", chat_template.status().message());
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<LiveTable> table, LiveTable::Open(options.table, model));
  LogInfo("model", model.name, ": context ", model.context_length, ", vocabulary ", model.vocabulary_size);
  auto parts = std::make_unique<Parts>(options, key, std::move(model), std::move(tokenizer), std::move(chat_template),
                                       std::move(table));
  RpcServerOptions rpc;
  rpc.listen = options.process.listen;
  rpc.keep_alive = kPublicKeepAlive;
  rpc.services = {&parts->service};
  rpc.health_names = {kServiceName};
  rpc.port = PortOptionsOf(options.process, parts->connections);
  rpc.limits = {options.connection_streams, options.request_memory.bytes / 2, /*read_ahead=*/false};
  rpc.channelz = options.process.channelz;
  RUNAHEAD_ASSIGN_OR_RETURN(parts->server, RpcServer::Start(rpc));
  parts->service.SetGate(&parts->server->gate());
  const auto health = [server = parts->server.get()] { return server->port_status(); };
  RUNAHEAD_ASSIGN_OR_RETURN(parts->metrics_server, MetricsServer::Start(options.process.metrics_listen, parts->registry,
                                                                        {health, &parts->metrics_connections}));
  LogInfo("main", "listening on ", parts->server->address(), ", metrics on ", parts->metrics_server->address());
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

void RouterProcess::UpdateMemory() {
  parts_->memory.Update();
  parts_->returned.Poll(RealClock().Now());
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
