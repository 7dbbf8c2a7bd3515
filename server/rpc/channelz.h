// gRPC's channelz service: what connections and calls a server has, for whoever can reach its port.
#pragma once

#include <grpcpp/impl/server_builder_option.h>

#include <memory>

namespace runahead {

// Whether a server that is built with it has channelz. Called before its builder is made.
std::unique_ptr<grpc::ServerBuilderOption> MakeChannelz(bool on);

}  // namespace runahead
