// Messages over TCP, robust against whatever comes to its port: a fault on one connection ends that connection alone.
//
// A connection for each pair of processes, made by whoever sends first (two when both do at once: each sends over the
// one that it made). Large bytes go straight from the sender's buffer to the socket and from the socket to the
// receiver's buffers, in chunks by turns, with small messages between them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/cluster_key.h"
#include "worker/link/command_queue.h"
#include "worker/link/message_engine.h"

namespace runahead {

class LinkTls;

struct TcpOptions {
  uint64_t incarnation = 0;
  uint32_t epoch = 0;
  std::string host = "127.0.0.1";  // numeric address of this host at which peers reach it
  int port = 0;                    // at which it listens; 0: any that is free
  // A living peer's thread answers in milliseconds. Who has not said and proved its hello by then is closed.
  absl::Duration hello_timeout = absl::Seconds(2);
  // Connections that have not proved who they are, at the most: one more, and one of them goes (TcpStrangers::First).
  // More than a large fleet makes at one moment; never above a quarter of the descriptors that are kept for such use.
  size_t max_strangers = 512;
  ClusterKey key = {};  // the same in all peers
  // With which all peers encrypt; null: nobody does.
  std::shared_ptr<const LinkTls> tls = nullptr;
  // What its thread is given to do, also from outside; null: one of its own.
  std::shared_ptr<CommandQueue> commands = nullptr;
};

// Of options.max_strangers, as many as the limit of descriptors allows.
size_t MostStrangers(const TcpOptions& options);

class TcpEngine : public MessageEngine {
 public:
  // INVALID_ARGUMENT for a host that is none. A port that is taken is UNAVAILABLE, with the name of the worker's
  // option.
  static absl::StatusOr<std::unique_ptr<TcpEngine>> Start(TcpOptions options);

 private:
  class Impl;
};

}  // namespace runahead
