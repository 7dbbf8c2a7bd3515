// Edges between processes whose KV lies in GPU memory: the edge core with frames that go from device to device.
#pragma once

#include <memory>

#include "kernels/cuda/peer_comm.h"
#include "worker/link/edge.h"
#include "worker/link/message_engine.h"

namespace runahead {

struct DeviceEdgeShared;

// Buffers are device memory as `comms` takes it. Thread-safe; two threads of its own. The engine and `comms` outlive
// the factory; edges may outlive it (they are dead then). One factory per engine. A peer must open a device edge, too:
// both sides choose by the same rule (device_fit.h). An edge dies with its peer, or at both sides when a communicator
// between them fails; a peer that was restarted is another one, with communicators of its own.
class DeviceEdgeFactory final : public EdgeFactory {
 public:
  // `faults` hears of frames that came damaged.
  DeviceEdgeFactory(MessageEngine& engine, PeerCommFactory& comms, const FrameFaults& faults = {});
  ~DeviceEdgeFactory() override;  // closes all edges

  PeerId self() const override;
  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) override;
  void Close(const PeerId& peer) override;

  // Job halves with state on the edge to `peer`; 0 when there is no such edge.
  size_t live_jobs(const PeerId& peer) const;

 private:
  MessageEngine& engine_;
  const std::unique_ptr<DeviceEdgeShared> shared_;
};

}  // namespace runahead
