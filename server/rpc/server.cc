#include "server/rpc/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "grpc/health/v1/health.pb.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/listening_sockets.h"
#include "server/base/logging.h"
#include "server/rpc/channelz.h"
#include "server/rpc/credentials.h"
#include "server/rpc/reflection.h"

namespace runahead {
namespace {

// For statuses that are on their way when the last pass was given back.
constexpr std::chrono::milliseconds kShutdownGrace{250};

// What goes wrong is in a status too, and said by whoever gets it. All but gRPC's last words before it aborts.
void LogOfGrpc(gpr_log_func_args* args) {
  const absl::string_view message = args->message;
  const bool last_words = absl::StartsWith(message, "assertion failed");
  const LogLevel level = last_words ? LogLevel::kError : LogLevel::kDebug;
  if (LogEnabled(level)) Log(level, "grpc", message);
  if (last_words) FlushLog();
}

void LogOfProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  LogDebug("protobuf", message);
}

// gRPC registers these for all servers of the process that are built later.
void RegisterPlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(LogOfGrpc);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // Reflection describes what is linked, and gRPC's own health service does not bring its description.
    grpc::health::v1::HealthCheckRequest::descriptor();
    // A client that sends garbage gets an error. It must not fill the log as well.
    google::protobuf::SetLogHandler(LogOfProtobuf);
  });
}

void SetArguments(grpc::ServerBuilder& builder, const RpcServerOptions& options) {
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options.port.greeting_time)));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options.port.idle_time)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options.keep_alive.time)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options.keep_alive.timeout)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Clients ask as often as their makers thought right, and pings bunch up on a busy machine: no reason to hang up.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(options.max_message_bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(options.listen));
  RUNAHEAD_ASSIGN_OR_RETURN(ListeningSockets sockets, ListenOn("listen", address));
  RegisterPlugins();
  std::unique_ptr<RpcServer> server(new RpcServer);
  server->health_names_ = options.health_names;
  std::unique_ptr<grpc::ServerBuilderOption> channelz = MakeChannelz(options.channelz);
  grpc::ServerBuilder builder;
  SetArguments(builder, options);
  SetTransportLimits(builder, options.limits);
  builder.SetOption(MakeReflection());
  builder.SetOption(std::move(channelz));
  std::unique_ptr<RpcPort::Acceptor> acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, MakeServerCredentials());
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) return absl::InternalError("listen: gRPC cannot start a server");
  server->SetServing(false);  // gRPC's health service begins with SERVING for the empty name
  server->address_ = FormatHostPort(sockets.address);
  RUNAHEAD_ASSIGN_OR_RETURN(
      server->port_, RpcPort::Open(std::move(sockets), std::move(acceptor), options.keep_alive.timeout, options.port));
  return server;
}

RpcServer::~RpcServer() {
  if (server_ == nullptr) return;
  if (port_ != nullptr) port_->Close();
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void RpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  health->SetServingStatus("", serving);
  for (const std::string& name : health_names_) health->SetServingStatus(name, serving);
}

bool RpcServer::Drain(absl::Duration timeout, const std::function<void()>& cut) {
  server_->GetHealthCheckService()->Shutdown();
  gate_.Close();
  const bool all_ended = gate_.WaitEmpty(timeout);
  if (!all_ended && cut) {
    cut();
    gate_.WaitEmpty(kCutTime);
  }
  port_->Close();
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  return all_ended;
}

}  // namespace runahead
