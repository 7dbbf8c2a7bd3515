// Client side of our gRPC connections.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/rpc/transport_options.h"

namespace runahead {

// How a channel's connections are encrypted.
struct ChannelTls {
  std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr;  // null: they are not
  // Whom the server's certificate must name; the host of the address where it is empty, or nobody at all where the
  // credentials judge by themselves.
  std::string server_name = "";
};

// A channel with a connection of its own (two channels to one address share nothing, so bulk data cannot delay tokens),
// `keep_alive`, reconnection within a second, no retries behind our back, and no proxy from the environment. Connects
// lazily; any thread. `interceptors` see every call over it. `read_ahead`: gRPC takes the more before it is read the
// faster the connection is; without it at most 64 KiB of a call.
using Interceptors = std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>;
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const KeepAlive& keep_alive = kProcessKeepAlive,
                                           Interceptors interceptors = {}, const ChannelTls& tls = {},
                                           bool read_ahead = true);

// Connects. UNAVAILABLE names the address when it takes longer than `timeout`. Blocks; never call it in a reactor.
absl::Status WaitReady(grpc::Channel& channel, const std::string& address, absl::Duration timeout);

// Limits a call; an infinite `timeout` sets no limit.
void SetTimeout(grpc::ClientContext& context, absl::Duration timeout);

}  // namespace runahead
