// gRPC's reflection under its final name, grpc.reflection.v1, and its older one, v1alpha, over the proto files that are
// linked.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

#include "server/rpc/message_call.h"

namespace runahead {

// The services grpc.reflection.v1.ServerReflection and v1alpha's. A stream takes no thread, however long it stays open.
class Reflection {
 public:
  // Every question comes through `door`.
  explicit Reflection(const CallDoor& door);
  ~Reflection();

  // To be registered; they live as long as this.
  std::vector<grpc::Service*> services();
  // The names of the server's services, these included. Before the first call.
  void SetNames(std::vector<std::string> names);

 private:
  struct Services;
  const std::unique_ptr<Services> services_;
};

}  // namespace runahead
