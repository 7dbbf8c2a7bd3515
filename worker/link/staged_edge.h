// Edges between hosts for a device whose memory the host cannot read: frames pass through pinned host memory.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "worker/link/edge.h"
#include "worker/link/staging_lane.h"

namespace runahead {

// Wraps a factory: the buffers of its edges are memory of `device`, the peers need not know. Thread-safe; two threads
// of its own.
//
// One bounded lane for what is sent, one for what is received, each shared by all edges. A send takes room when its
// bytes are ready, a receive when it is posted, each in that order. It suffices that one frame fits: what holds room
// for a send was ready before what waits, and a stage's frames get ready layer by layer, at most two layers ahead of
// what its neighbours have asked for, so that neighbours take what holds room without anything that waits. Receives are
// posted in the order in which neighbours send, and no send waits for them.
class StagedEdgeFactory final : public EdgeFactory {
 public:
  // `staging_bytes` of pinned memory for each direction, allocated when the first edge is opened.
  StagedEdgeFactory(std::unique_ptr<EdgeFactory> inner, Device& device, size_t staging_bytes);
  ~StagedEdgeFactory() override;

  PeerId self() const override { return inner_->self(); }
  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) override RUNAHEAD_EXCLUDES(mu_);
  void Close(const PeerId& peer) override RUNAHEAD_EXCLUDES(mu_);

 private:
  class StagedEdge;
  const std::shared_ptr<StagingLane> sending_, receiving_;
  std::unique_ptr<EdgeFactory> inner_;
  Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<StagedEdge>> edges_ RUNAHEAD_GUARDED_BY(mu_);  // by incarnation
};

}  // namespace runahead
