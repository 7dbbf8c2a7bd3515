// Server side of our gRPC connections: one listening port with health and reflection beside our services, and channelz
// where asked for.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/drain_gate.h"
#include "server/rpc/rpc_port.h"
#include "server/rpc/transport_limits.h"
#include "server/rpc/transport_options.h"

namespace runahead {

class HealthService;
class OpenDoor;
class Reflection;
class UnknownMethods;

// Enough for a call to tell workers and client that it ends, too short for anyone to wait for.
inline constexpr absl::Duration kCutTime = absl::Seconds(2);

struct RpcServerOptions {
  std::string listen;                     // host:port, port 0 takes a free one
  std::vector<grpc::Service*> services;   // callback services; they must outlive the server
  std::vector<std::string> health_names;  // what grpc.health.v1 knows by name, such as "runahead.v1.Inference"
  KeepAlive keep_alive = kProcessKeepAlive;
  int max_message_bytes = kMaxMessageBytes;
  RpcPortOptions port = {};
  TransportLimits limits = {};
  // What stands before health and reflection; outlives the server. Null: one of its own, of which nothing is counted.
  OpenDoor* open_door = nullptr;
  std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;  // null: nothing is encrypted, and anybody may come
  bool channelz = false;  // gRPC's own service about connections and calls, for whoever reaches the port
};

// Thread-safe. Starts with health NOT_SERVING: call SetServing(true) when requests can really be answered.
class RpcServer {
 public:
  // INVALID_ARGUMENT or UNAVAILABLE name the address.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options);

  // Cancels what still runs and waits for its reactors to be done.
  ~RpcServer();

  // host:port that was really bound.
  const std::string& address() const { return address_; }

  // RpcPort::status().
  absl::Status port_status() const { return port_->status(); }

  // All named services, and the server as a whole (the empty name).
  void SetServing(bool serving);
  // OK, or UNAVAILABLE: as health says of all of them.
  absl::Status serving() const;

  // For calls of this process to its own services: they come as those over the port do, but for its limits on
  // connections. A call begins with a pass of the gate only: one that begins while the server shuts down would end the
  // process (gRPC 1.51).
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Where a service's calls get a pass, so that Drain() waits for them. Hold it until the reactor's OnDone: a call that
  // gave it back earlier may be cut off before its status is sent. Calls that live as long as the peer (control
  // streams) take none.
  DrainGate& gate() { return gate_; }

  // Health says NOT_SERVING for good, the gate closes, calls with a pass may go on for `timeout`, then everything is
  // cancelled and the port closed. Where calls are left after `timeout`, `cut` is called first, and may end them with a
  // word of its own: they have kCutTime for it. True when all calls with a pass had ended by themselves. Blocks; once.
  bool Drain(absl::Duration timeout, const std::function<void()>& cut = nullptr);

 private:
  explicit RpcServer(const RpcServerOptions& options);

  DrainGate gate_;
  const std::unique_ptr<OpenDoor> own_door_;  // null where another was given
  const std::unique_ptr<HealthService> health_;
  const std::unique_ptr<Reflection> reflection_;
  const std::unique_ptr<UnknownMethods> unknown_methods_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<RpcPort> port_;  // null until the server runs
};

}  // namespace runahead
