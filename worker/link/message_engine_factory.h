// Which engine a process uses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/cluster_key.h"
#include "worker/link/command_queue.h"
#include "worker/link/message_engine.h"

namespace runahead {

struct MessageEngineOptions {
  uint64_t incarnation = 0;
  uint32_t epoch = 0;
  std::string transport = "tcp";   // or "ucx"
  std::string host = "127.0.0.1";  // numeric address of this host at which peers reach it
  int port = 0;                    // at which it listens; 0: any that is free
  ClusterKey key = {};             // the same in all peers
  // Of "tcp": what its thread is given to do, also from outside; null: one of its own.
  std::shared_ptr<CommandQueue> commands = nullptr;
};

// INVALID_ARGUMENT for a transport or host that is none. A port that is taken is UNAVAILABLE, with the name of the
// worker's option.
absl::StatusOr<std::unique_ptr<MessageEngine>> MakeMessageEngine(const MessageEngineOptions& options);

}  // namespace runahead
