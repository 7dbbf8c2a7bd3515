// gRPC's reflection under its final name, grpc.reflection.v1, over the proto files that are linked.
#pragma once

#include <grpcpp/impl/server_builder_option.h>

#include <memory>

namespace runahead {

// Gives a server that is built with it the service grpc.reflection.v1.ServerReflection, which names all of its
// services.
std::unique_ptr<grpc::ServerBuilderOption> MakeReflection();

}  // namespace runahead
