// Messages over TCP: the default, and robust against whatever comes to its port, for a fault on one connection ends
// that connection alone.
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

struct TcpOptions {
  uint64_t incarnation = 0;
  uint32_t epoch = 0;
  std::string host = "127.0.0.1";  // numeric address of this host at which peers reach it
  int port = 0;                    // at which it listens; 0: any that is free
  // A living peer's thread answers in milliseconds. Who has not said and proved its hello by then is closed.
  absl::Duration hello_timeout = absl::Seconds(2);
  // Connections that have not proved who they are, at the most; others wait until one has, or its time is over. More
  // than a large fleet makes at one moment, and a part of the descriptors that a process usually has.
  size_t max_strangers = 512;
  ClusterKey key = {};                               // the same in all peers
  std::shared_ptr<CommandQueue> commands = nullptr;  // null: one of its own
};

class TcpEngine final : public MessageEngine {
 public:
  static absl::StatusOr<std::unique_ptr<TcpEngine>> Start(const TcpOptions& options);
  ~TcpEngine() override;

  const PeerId& self() const override;
  void SetHandler(MessageKind kind, Handler handler) override;
  void Connect(const PeerId& peer, Done on_death) override;
  void Send(const PeerId& peer, MessageKind kind, std::string header, ConstBufferRef bytes, Done done) override;
  void Close(const PeerKey& peer) override;
  void CloseAll(uint64_t incarnation, uint32_t epoch) override;
  void Stop() override;
  std::string Transport(const PeerId& peer) override;

 private:
  class Impl;
  explicit TcpEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace runahead
