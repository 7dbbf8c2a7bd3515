// Who calls the engine service, as the public service is told.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <string>
#include <utility>
#include <vector>

namespace runahead {

// What of a call's metadata goes on with its calls to the public service: keys, tenant, trace. Its deadline does, too.
class EngineCaller {
 public:
  explicit EngineCaller(const grpc::CallbackServerContext& context);

  void Describe(grpc::ClientContext& context) const;

  // Whether both came with the same API key, or both with none.
  bool HasKeyOf(const EngineCaller& other) const { return keys_ == other.keys_; }

 private:
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  Metadata keys_, others_;
  gpr_timespec deadline_;
};

}  // namespace runahead
