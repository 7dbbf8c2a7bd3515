#include "worker/worker_process.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/logging.h"
#include "server/base/metrics_server.h"
#include "server/base/random.h"
#include "server/rpc/server.h"
#include "worker/decode_role.h"
#include "worker/device_factory.h"
#include "worker/format/gguf.h"
#include "worker/link/link_host.h"
#include "worker/link/message_engine_factory.h"
#include "worker/model/warm_up.h"
#include "worker/prefill_role.h"
#include "worker/service/control_service.h"

namespace runahead {
namespace {

constexpr int kProtocolVersion = 1;

std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "localhost";
  return name;
}

// Before the model is loaded: that takes long, and what is wrong here can be said at once.
absl::StatusOr<std::string> LinkHostOf(const WorkerOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.process.listen));
  const bool given = !options.link_host.empty();
  absl::StatusOr<std::string> host = LinkHost(given ? options.link_host : listen.host);
  if (host.ok()) return host;
  return absl::Status(host.status().code(), absl::StrCat(given ? "link_host: " : "listen: ", host.status().message()));
}

// Every role gets every command and takes what is its own.
class AllRoles : public ControlHandler {
 public:
  void Add(ControlHandler* role) { roles_.push_back(role); }
  void SetLinks(MessageEngine* links) { links_ = links; }
  void OnFormLine(const v1::FormLine& line) override {
    // One that hangs keeps its connections; hand-off to or from it would hold memory for as long.
    for (const uint64_t lost : line.lost()) links_->Close(lost);
    for (ControlHandler* role : roles_) role->OnFormLine(line);
  }
  void OnStart(const v1::StartJob& start) override {
    for (ControlHandler* role : roles_) role->OnStart(start);
  }
  void OnCancel(uint64_t job) override {
    for (ControlHandler* role : roles_) role->OnCancel(job);
  }
  void OnRelease(const v1::LeaseId& lease) override {
    for (ControlHandler* role : roles_) role->OnRelease(lease);
  }
  void OnRouterGone() override {
    for (ControlHandler* role : roles_) role->OnRouterGone();
  }

 private:
  MessageEngine* links_ = nullptr;
  std::vector<ControlHandler*> roles_;
};

}  // namespace

// In the order of construction. How they end is ~WorkerProcess's business.
struct WorkerProcess::Parts {
  std::string link_host;
  std::shared_ptr<Device> device;
  std::unique_ptr<PeerCommFactory> gpu_links;  // null on the CPU
  std::shared_ptr<const Model> model;
  std::unique_ptr<MetricRegistry> metrics;
  std::unique_ptr<MessageEngine> engine;
  std::unique_ptr<DecodeRole> decode;
  std::unique_ptr<PrefillRole> prefill;
  AllRoles roles;
  std::unique_ptr<ControlService> control;
  std::unique_ptr<RpcServer> server;
  std::unique_ptr<MetricsServer> metrics_server;

  absl::Status LoadModelFor(const WorkerOptions& options);
  absl::Status StartRoles(const WorkerOptions& options);
  absl::Status Serve(const WorkerOptions& options, std::function<void()> given_up);
  v1::Capabilities CapabilitiesOf(const WorkerOptions& options) const;
};

absl::Status WorkerProcess::Parts::LoadModelFor(const WorkerOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(OpenedDevice opened, OpenDevice(options));
  device = std::move(opened.device);
  gpu_links = std::move(opened.links);
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> file, GgufFile::Open(options.model));
  const unsigned uses = (options.prefill() ? kUsePrefill : 0u) | (options.decode() ? kUseDecode : 0u);
  int tenths_logged = 0;
  const auto progress = [&](int done, int total) {
    if (done * 10 / total == tenths_logged) return;
    tenths_logged = done * 10 / total;
    LogInfo("model", "loading ", options.model, ": ", 10 * tenths_logged, "%");
  };
  RUNAHEAD_ASSIGN_OR_RETURN(model, LoadModel(std::move(file), device, uses, progress));
  RUNAHEAD_RETURN_IF_ERROR(WarmUp(*model, *device, uses));
  const ModelConfig& config = model->config();
  LogInfo("model", config.name, ": ", config.layers, " layers, ", config.hidden, " hidden, ", config.heads, "/",
          config.kv_heads, " heads, context ", config.context_length);
  return absl::OkStatus();
}

absl::Status WorkerProcess::Parts::StartRoles(const WorkerOptions& options) {
  metrics = std::make_unique<MetricRegistry>(std::string(device->name()));
  RUNAHEAD_ASSIGN_OR_RETURN(engine, MakeMessageEngine({RandomBits64(), options.link_transport, link_host}));
  roles.SetLinks(engine.get());
  if (options.decode()) {
    RUNAHEAD_ASSIGN_OR_RETURN(decode, DecodeRole::Create(options, *device, model, *engine, *metrics));
    roles.Add(&decode->control());
  }
  if (options.prefill()) {
    SliceReceiver* const own_store = decode != nullptr ? &decode->receiver() : nullptr;
    RUNAHEAD_ASSIGN_OR_RETURN(
        prefill, PrefillRole::Create(options, *device, model, *engine, gpu_links.get(), own_store, *metrics));
    roles.Add(&prefill->control());
  }
  return absl::OkStatus();
}

v1::Capabilities WorkerProcess::Parts::CapabilitiesOf(const WorkerOptions& options) const {
  const ModelConfig& config = model->config();
  v1::Capabilities capabilities;
  capabilities.set_protocol_version(kProtocolVersion);
  capabilities.set_incarnation(engine->self().incarnation);
  if (prefill != nullptr) capabilities.add_roles(v1::WORKER_ROLE_PREFILL);
  if (decode != nullptr) capabilities.add_roles(v1::WORKER_ROLE_DECODE);
  capabilities.set_name(options.name);
  capabilities.set_host(HostName());
  capabilities.set_device(std::string(device->name()));
  capabilities.set_model_name(config.name);
  capabilities.set_model_fingerprint(config.fingerprint);
  capabilities.set_compute_dtype(std::string(DTypeName(device->compute_dtype())));
  capabilities.set_kv_dtype(std::string(DTypeName(model->attention_shape().kv_dtype)));
  capabilities.set_context_length(static_cast<int32_t>(config.context_length));
  capabilities.set_layers(static_cast<int32_t>(config.layers));
  capabilities.set_kv_row_bytes(static_cast<int32_t>(model->attention_shape().kv_row_bytes()));
  capabilities.set_link_address(engine->self().address);
  if (gpu_links != nullptr) capabilities.set_device_link(gpu_links->identity());
  if (decode != nullptr) capabilities.set_kv_capacity_tokens(decode->capacity_tokens());
  if (prefill != nullptr) capabilities.set_max_part_tokens(prefill->max_prefix_tokens());
  return capabilities;
}

absl::Status WorkerProcess::Parts::Serve(const WorkerOptions& options, std::function<void()> given_up) {
  control = std::make_unique<ControlService>(CapabilitiesOf(options), roles, std::move(given_up));
  if (prefill != nullptr) {
    prefill->BindReports([this](v1::ControlReport report) { control->Report(std::move(report)); });
  }
  RpcServerOptions rpc;
  rpc.listen = options.process.listen;
  rpc.services.push_back(control.get());
  rpc.health_names.push_back("runahead.v1.Worker");
  if (decode != nullptr) {
    rpc.services.push_back(&decode->service());
    rpc.services.push_back(&decode->handoff_service());
    rpc.health_names.push_back("runahead.v1.Decode");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(server, RpcServer::Start(rpc));
  if (decode != nullptr) decode->service().SetGate(server->gate());
  RUNAHEAD_ASSIGN_OR_RETURN(metrics_server, MetricsServer::Start(options.process.metrics_listen, *metrics));
  server->SetServing(true);
  LogInfo("main", "serving on ", server->address(), ", metrics on ", metrics_server->address());
  return absl::OkStatus();
}

WorkerProcess::WorkerProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

// The control stream ends first: its jobs are cancelled while links still work. The roles go before the control
// service, for the last jobs still report to it.
WorkerProcess::~WorkerProcess() {
  parts_->metrics_server.reset();
  parts_->server.reset();
  parts_->control->Stop();
  parts_->prefill.reset();
  parts_->decode.reset();
}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const WorkerOptions& options,
                                                                    std::function<void()> given_up) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWorkerOptions(options));
  auto parts = std::make_unique<Parts>();
  RUNAHEAD_ASSIGN_OR_RETURN(parts->link_host, LinkHostOf(options));
  RUNAHEAD_RETURN_IF_ERROR(parts->LoadModelFor(options));
  RUNAHEAD_RETURN_IF_ERROR(parts->StartRoles(options));
  RUNAHEAD_RETURN_IF_ERROR(parts->Serve(options, std::move(given_up)));
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(std::move(parts)));
}

const std::string& WorkerProcess::address() const {
  return parts_->server->address();
}
const std::string& WorkerProcess::metrics_address() const {
  return parts_->metrics_server->address();
}

void WorkerProcess::Drain(absl::Duration timeout) {
  parts_->server->Drain(timeout);
}

}  // namespace runahead
