// Messages over UCX, for RDMA networks that only trusted hosts reach: UCX 1.13 ends the process when its listener hears
// garbage.
//
// One UCX worker per engine, called on the engine's progress thread only. A dead peer's endpoint is closed by force,
// and only when UCX gave back every buffer do the `done` callbacks have run.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/cluster_key.h"
#include "worker/link/message_engine.h"

namespace runahead {

struct UcxOptions {
  uint64_t incarnation = 0;
  uint32_t epoch = 0;
  std::string transports;          // as UCX_TLS takes them; empty: RDMA where it is, else TCP
  std::string host = "127.0.0.1";  // numeric address of this host at which peers reach it
  int port = 0;                    // at which it listens; 0: any that is free
  ClusterKey key = {};             // the same in all peers
};

class UcxEngine final : public MessageEngine {
 public:
  static absl::StatusOr<std::unique_ptr<UcxEngine>> Start(const UcxOptions& options);
  // Says goodbye to all peers before.
  ~UcxEngine() override;

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
  explicit UcxEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace runahead
