// The port of a gRPC server: who may connect, and whether the port still serves.
#pragma once

#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/connection_metrics.h"
#include "server/base/listening_sockets.h"
#include "server/base/process.h"
#include "server/base/rare_line.h"
#include "server/base/self_probe.h"
#include "server/rpc/port_probe.h"
#include "server/rpc/rpc_listener.h"

namespace runahead {

struct RpcPortOptions {
  int max_connections = 4096;  // at the most; of one address three quarters
  // A client that has said nothing for so long after it has connected is none.
  absl::Duration greeting_time = absl::Seconds(20);
  // A connection without calls is closed after this time: its client's next call makes another, unseen by the caller.
  absl::Duration idle_time = absl::Minutes(10);
  // RpcListenerOptions. gRPC keeps as large a buffer for each connection as ever came while it emptied the kernel's,
  // for as long as the connection is open: megabytes of each that was in a hurry. This is as much as a call may bring
  // before it is read.
  int receive_buffer = 64 << 10;
  bool tls = false;  // whether the server speaks it
  // How long the process's own questions at the port may go without an answer before status() says so.
  absl::Duration patience = absl::Seconds(30);
  // Called once, on a thread of the port, after three times that: the port will not be served any more.
  std::function<void(const absl::Status&)> on_deaf;
  const ConnectionMetrics* metrics = nullptr;  // null: nothing is counted; else it must outlive the server
};

// As the process's options say; a process whose port is deaf ends.
RpcPortOptions PortOptionsOf(const ProcessOptions& process, const ConnectionMetrics& metrics);

// Thread-safe.
class RpcPort {
 public:
  using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

  // From now on connections come to `acceptor`, whose server must have been started. `lost_after`: RpcListenerOptions.
  static absl::StatusOr<std::unique_ptr<RpcPort>> Open(ListeningSockets sockets, std::unique_ptr<Acceptor> acceptor,
                                                       absl::Duration lost_after, const RpcPortOptions& options);

  // Whether the process's own questions are answered: OK, or UNAVAILABLE and why. That the port is full is no reason:
  // for these questions there is always room. Nor is a question that does not come in while others do.
  absl::Status status() const { return probe_->status(); }

  // Nobody is accepted any more when this returns. Before the server is shut down.
  void Close();

 private:
  RpcPort() = default;
  // Asks at all addresses. RESOURCE_EXHAUSTED where some could not be asked, and the others have answered.
  absl::Status Ask(absl::Duration timeout);

  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<RpcListener> listener_;
  std::vector<std::unique_ptr<PortProbe>> asked_;
  RareLine unasked_{absl::Minutes(1)};  // it could not ask
  std::unique_ptr<SelfProbe> probe_;
};

}  // namespace runahead
