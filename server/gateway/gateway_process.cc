#include "server/gateway/gateway_process.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/connection_metrics.h"
#include "server/base/logging.h"
#include "server/base/metrics_server.h"
#include "server/gateway/gateway.h"
#include "server/gateway/http_door.h"
#include "server/rpc/channel.h"
#include "server/rpc/lock_graph.h"

namespace runahead {

// In the order in which they depend on each other.
struct GatewayProcess::Parts {
  Parts(const GatewayOptions& given, const ChannelTls& tls)
      : options(given),
        memory(given.request_memory),
        channel(MakeChannel(given.router, kPublicKeepAlive, {}, tls, /*read_ahead=*/false)),
        stub(v1::Inference::NewStub(channel)),
        gateway({channel, *stub, registry, metrics, memory, gate, RealClock(), given.model_aliases, given.cors_origins,
                 HostsOf(given), given.quiet_time}) {}

  const GatewayOptions options;
  MetricRegistry registry{"none"};
  ConnectionMetrics http_connections{registry, "http"}, metrics_connections{registry, "metrics"};
  GatewayMetrics metrics{registry};
  ByteBudget memory;
  DrainGate gate;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::StubInterface> stub;
  Gateway gateway;
  std::unique_ptr<HttpDoor> door;
  std::unique_ptr<MetricsServer> metrics_server;
};

GatewayProcess::GatewayProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

GatewayProcess::~GatewayProcess() {
  parts_->gate.Close();
  parts_->door.reset();  // its clients are gone then, and their calls cancelled
  parts_->gate.WaitEmpty(absl::InfiniteDuration());
}

absl::StatusOr<std::unique_ptr<GatewayProcess>> GatewayProcess::Start(const GatewayOptions& options) {
  KeepNoLockGraph();
  RUNAHEAD_ASSIGN_OR_RETURN(const ChannelTls tls, RouterTlsOf(options));
  auto parts = std::make_unique<Parts>(options, tls);
  HttpDoorOptions door;
  door.listen = options.listen;
  door.max_connections = options.max_connections;
  door.max_body = options.max_body;
  door.memory = &parts->memory;
  door.connections = &parts->http_connections;
  RUNAHEAD_ASSIGN_OR_RETURN(parts->door, HttpDoor::Start(door, [gateway = &parts->gateway](auto exchange) {
                              gateway->Handle(std::move(exchange));
                            }));
  RUNAHEAD_ASSIGN_OR_RETURN(
      parts->metrics_server,
      MetricsServer::Start(options.metrics_listen, parts->registry, {nullptr, &parts->metrics_connections, nullptr}));
  const std::string& address = parts->door->address();
  LogInfo("main", "speaking HTTP on http://", address, "/v1, for the router at ", options.router, "; metrics on ",
          parts->metrics_server->address());
  if (const auto host = ParseHostPort(address); host.ok() && !IsLoopback(host->host)) {
    LogWarning("main", "whoever reaches ", address,
               " can call, as far as the router's API keys let them; keys and texts are not encrypted on this port");
  }
  return std::unique_ptr<GatewayProcess>(new GatewayProcess(std::move(parts)));
}

const std::string& GatewayProcess::address() const {
  return parts_->door->address();
}
const std::string& GatewayProcess::metrics_address() const {
  return parts_->metrics_server->address();
}

void GatewayProcess::Drain(absl::Duration timeout) {
  if (parts_->door->Drain(timeout)) return;
  LogWarning("main", "requests are cut off after ", absl::FormatDuration(timeout));
}

}  // namespace runahead
