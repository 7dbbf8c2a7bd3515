// The answer to calls of methods that a server does not have. gRPC's own has no word.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <string>
#include <vector>

namespace runahead {

// Registered beside a server's services. Thread-safe; outlives the server. Reads nothing of such a call.
class UnknownMethods final : public grpc::CallbackGenericService {
 public:
  // The names of the server's services. Before the first call.
  void SetNames(std::vector<std::string> names) { names_ = std::move(names); }

  // UNIMPLEMENTED, naming the method and those that there are: of its service, or else all services.
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  std::string WordsFor(const std::string& method) const;

  std::vector<std::string> names_;
};

}  // namespace runahead
