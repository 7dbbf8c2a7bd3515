#include "server/rpc/rpc_port.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/clock.h"
#include "server/base/logging.h"

namespace runahead {

RpcPortOptions PortOptionsOf(const ProcessOptions& process, const ConnectionMetrics& metrics) {
  RpcPortOptions options;
  options.max_connections = process.max_connections;
  options.patience = process.port_patience;
  options.on_deaf = EndProcess;
  options.metrics = &metrics;
  return options;
}

absl::StatusOr<std::unique_ptr<RpcPort>> RpcPort::Open(ListeningSockets sockets, std::unique_ptr<Acceptor> acceptor,
                                                       absl::Duration lost_after, const RpcPortOptions& options) {
  std::unique_ptr<RpcPort> port(new RpcPort);
  port->acceptor_ = std::move(acceptor);
  // The descriptors for these questions are taken before any client comes.
  for (size_t i = 0; i < sockets.sockets.size(); ++i) {
    const AskedListener listener = {
        .announce = [raw = port.get()](const SocketAddress& from) { raw->listener_->ExpectFrom(from); },
        .acceptance = [raw = port.get(), i] { return raw->listener_->acceptance(i); }};
    RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<PortProbe> asked,
                              PortProbe::Create(OwnAddress(sockets.sockets[i]), listener, options.tls));
    port->asked_.push_back(std::move(asked));
  }
  const auto take = [acceptor = port->acceptor_.get()](Descriptor connection, const Descriptor& listener) {
    Acceptor::NewConnectionParameters parameters;
    parameters.listener_fd = listener.get();
    parameters.fd = connection.Release();
    acceptor->HandleNewConnection(&parameters);
  };
  port->listener_ = std::make_unique<RpcListener>(
      std::move(sockets),
      RpcListenerOptions{options.max_connections, lost_after, options.metrics, options.receive_buffer}, take);
  const auto ask = [raw = port.get()](absl::Duration timeout) { return raw->Ask(timeout); };
  port->probe_ = std::make_unique<SelfProbe>(SelfProbeOptions{ask, options.patience, options.on_deaf}, RealClock());
  return port;
}

void RpcPort::Close() {
  probe_->Stop();
  listener_->Close();
}

absl::Status RpcPort::Ask(absl::Duration timeout) {
  absl::Status unasked;
  for (const auto& address : asked_) {
    const absl::Status answer = address->Ask(timeout / static_cast<int64_t>(asked_.size()));
    if (!absl::IsResourceExhausted(answer)) RUNAHEAD_RETURN_IF_ERROR(answer);
    unasked.Update(answer);
  }
  if (!unasked.ok() && unasked_.Happened().has_value()) {
    LogWarning("port", "this process could not ask its own port, which says nothing of the port: ", unasked.message());
  }
  return unasked;
}

}  // namespace runahead
