// Edges between processes: the edge core, whose frames are transfers of an engine. Their bytes go over the connection,
// from host memory or through pinned memory; or from GPU to GPU, where both sides can.
#pragma once

#include <memory>

#include "kernels/cuda/peer_comm.h"
#include "worker/link/edge.h"
#include "worker/link/edge_directory.h"
#include "worker/link/frame_sum.h"
#include "worker/link/message/edge_staging.h"
#include "worker/link/message_engine.h"

namespace runahead {

struct DeviceCommsShared;

struct MessageEdgeOptions {
  // Buffers are memory of its device; null: of the host.
  std::unique_ptr<EdgeStaging> staging = nullptr;
  // Opens what joins GPUs. Its identity is told to the peers as this worker's device_link. Outlives the factory. Null:
  // no edge goes from GPU to GPU.
  PeerCommFactory* comms = nullptr;
  FrameFaults faults = {};  // hear of frames that came damaged
};

// Edges of a worker whose buffers are memory of `device`: through `staging_bytes` of pinned memory each way where the
// host cannot read it, whose copies `meters` are of.
MessageEdgeOptions EdgesOf(Device& device, size_t staging_bytes, PeerCommFactory* comms, FrameFaults faults = {},
                           const StagingMeters& meters = {});

// Thread-safe. The engine outlives the factory; edges may outlive both (they are dead then). One factory per engine.
// Whether an edge goes from GPU to GPU follows from both identities alone (device_fit.h), so that the peer
// chooses the same; the log says which. Such an edge dies at both sides when a communicator between them fails, too.
class MessageEdgeFactory final : public EdgeFactory {
 public:
  explicit MessageEdgeFactory(MessageEngine& engine, MessageEdgeOptions options = {});
  ~MessageEdgeFactory() override;  // closes all edges

  PeerId self() const override;
  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) override;
  void Close(const PeerId& peer) override;

  // Job halves with state on the edge to `peer`; 0 when there is no such edge.
  size_t live_jobs(const PeerId& peer) const;

 private:
  class Wire;

  MessageEngine& engine_;
  const MessageEdgeOptions options_;
  const std::unique_ptr<DeviceCommsShared> comms_;  // null: no edge goes from GPU to GPU
  const std::shared_ptr<EdgeDirectory> directory_;
};

}  // namespace runahead
