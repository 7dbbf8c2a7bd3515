// What has come over a connection of this process, as the kernel counts it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace runahead {

// For one thread.
class ReceivedBytes {
 public:
  // Bytes so far over the connection from `peer`, as grpc::ServerContext::peer() writes it. Nothing where there is no
  // such connection (any more).
  std::optional<uint64_t> Of(const std::string& peer);

 private:
  void Look();

  absl::flat_hash_map<std::string, int> sockets_;  // descriptors by peer, as of the last look; gRPC's, not ours
};

}  // namespace runahead
