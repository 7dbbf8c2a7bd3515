#include "server/rpc/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <mutex>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/listening_sockets.h"
#include "server/base/logging.h"
#include "server/rpc/channelz.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/health.h"
#include "server/rpc/lock_graph.h"
#include "server/rpc/open_door.h"
#include "server/rpc/reflection.h"
#include "server/rpc/unknown_methods.h"

namespace runahead {
namespace {

// For statuses that are on their way when the last pass was given back.
constexpr std::chrono::milliseconds kShutdownGrace{250};

void LogOfProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  LogDebug("protobuf", message);
}

// Asks for the names of a server's services: only gRPC knows them all, its own ones too.
using TakeNames = std::function<void(const std::vector<std::string>&)>;

class NamesPlugin final : public grpc::ServerBuilderPlugin {
 public:
  explicit NamesPlugin(TakeNames take) : take_(std::move(take)) {}
  std::string name() override { return "names"; }
  void InitServer(grpc::ServerInitializer*) override {}
  void Finish(grpc::ServerInitializer* server) override { take_(*server->GetServiceList()); }
  void ChangeArguments(const std::string&, void*) override {}

 private:
  const TakeNames take_;
};

class NamesOption final : public grpc::ServerBuilderOption {
 public:
  explicit NamesOption(TakeNames take) : take_(std::move(take)) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<NamesPlugin>(take_));
  }

 private:
  const TakeNames take_;
};

// gRPC's callbacks run on a queue that its users share, and that goes with the last of them. Where others come then,
// gRPC 1.51 frees the next queue twice in rare cases. One user stays for as long as the process: a server without a
// port.
void KeepCallbackQueue() {
  static grpc::CallbackGenericService& service = *new grpc::CallbackGenericService;
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&service);
  static grpc::Server* const server = builder.BuildAndStart().release();
  RUNAHEAD_CHECK(server != nullptr);
}

// gRPC registers these for all servers of the process that are built later.
void RegisterPlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    KeepNoLockGraph();
    RouteGrpcLogOfServer();
    grpc::EnableDefaultHealthCheckService(false);  // it reads whatever anybody sends
    // A client that sends garbage gets an error. It must not fill the log as well.
    google::protobuf::SetLogHandler(LogOfProtobuf);
    KeepCallbackQueue();
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
  // gRPC unfolds a compressed message before it looks at its size: a few MiB on the wire would take GiB. Ours come as
  // they are, to be unfolded under a limit (unfold_message.h).
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(options.max_message_bytes);
}

CallDoor DoorOf(const RpcServerOptions& options, OpenDoor* own) {
  return (own != nullptr ? own : options.open_door)->door();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(options.listen));
  RUNAHEAD_ASSIGN_OR_RETURN(ListeningSockets sockets, ListenOn("listen", address));
  RegisterPlugins();
  std::unique_ptr<RpcServer> server(new RpcServer(options));
  std::unique_ptr<grpc::ServerBuilderOption> channelz = MakeChannelz(options.channelz);
  grpc::ServerBuilder builder;
  SetArguments(builder, options);
  SetTransportLimits(builder, options.limits);
  builder.SetOption(std::make_unique<NamesOption>([&server](const std::vector<std::string>& names) {
    server->reflection_->SetNames(names);
    server->unknown_methods_->SetNames(names);
  }));
  builder.SetOption(std::move(channelz));
  std::unique_ptr<RpcPort::Acceptor> acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      options.credentials != nullptr ? options.credentials : grpc::InsecureServerCredentials());
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  builder.RegisterService(server->health_.get());
  for (grpc::Service* service : server->reflection_->services()) builder.RegisterService(service);
  builder.RegisterCallbackGenericService(server->unknown_methods_.get());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) return absl::InternalError("listen: gRPC cannot start a server");
  server->address_ = FormatHostPort(sockets.address);
  RpcPortOptions port = options.port;
  port.tls = options.credentials != nullptr;
  RUNAHEAD_ASSIGN_OR_RETURN(server->port_,
                            RpcPort::Open(std::move(sockets), std::move(acceptor), options.keep_alive.timeout, port));
  return server;
}

RpcServer::RpcServer(const RpcServerOptions& options)
    : own_door_(options.open_door == nullptr ? std::make_unique<OpenDoor>() : nullptr),
      health_(std::make_unique<HealthService>(DoorOf(options, own_door_.get()), options.health_names)),
      reflection_(std::make_unique<Reflection>(DoorOf(options, own_door_.get()))),
      unknown_methods_(std::make_unique<UnknownMethods>()) {}

RpcServer::~RpcServer() {
  if (server_ == nullptr) return;
  gate_.Close();
  if (port_ != nullptr) port_->Close();
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

std::shared_ptr<grpc::Channel> RpcServer::InProcessChannel() {
  return server_->InProcessChannel({});
}

void RpcServer::SetServing(bool serving) {
  health_->SetServing(serving);
}

absl::Status RpcServer::serving() const {
  return health_->serving() ? absl::OkStatus() : absl::UnavailableError("not serving");
}

bool RpcServer::Drain(absl::Duration timeout, const std::function<void()>& cut) {
  health_->Drain();
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
