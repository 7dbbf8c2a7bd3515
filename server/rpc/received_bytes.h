// What has come over a connection of this process, as the kernel counts it, and its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/base/rare_line.h"

namespace runahead {

// For one thread.
class ReceivedBytes {
 public:
  // Bytes so far over the connection from `peer`, as grpc::ServerContext::peer() writes it. Nothing where there is no
  // such connection (any more).
  std::optional<uint64_t> Of(const std::string& peer);

  // Ends the connection from `peer`, named likewise, as if the network did, and says so in the log once in a while.
  // gRPC has no way to end one, and finds its socket at its end.
  void HangUp(const std::string& peer);

 private:
  // -1 where there is none.
  int SocketOf(const std::string& peer);
  void Look();

  RareLine hung_up_{absl::Minutes(1)};

  absl::flat_hash_map<std::string, int> sockets_;  // descriptors by peer, as of the last look; gRPC's, not ours
};

}  // namespace runahead
