// Edges between processes: the edge core with an engine's messages as its wire.
#pragma once

#include <memory>

#include "worker/link/edge.h"
#include "worker/link/edge_directory.h"
#include "worker/link/frame_sum.h"
#include "worker/link/message/edge_staging.h"
#include "worker/link/message_engine.h"

namespace runahead {

struct MessageEdgeShared;

// Thread-safe. The engine outlives the factory; edges may outlive both (they are dead then). One factory per engine.
class MessageEdgeFactory final : public EdgeFactory {
 public:
  // With `staging`, buffers are memory of its device. Null: of the host.
  explicit MessageEdgeFactory(MessageEngine& engine, std::unique_ptr<EdgeStaging> staging = nullptr,
                              FrameFaults faults = {});
  ~MessageEdgeFactory() override;  // closes all edges

  PeerId self() const override;
  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) override;
  void Close(const PeerId& peer) override;

  // Job halves with state on the edge to `peer`; 0 when there is no such edge.
  size_t live_jobs(const PeerId& peer) const;

 private:
  std::shared_ptr<EdgeEnd> MakeEnd(const PeerId& peer);

  MessageEngine& engine_;
  const std::unique_ptr<MessageEdgeShared> shared_;
  const std::shared_ptr<EdgeDirectory> directory_;
};

}  // namespace runahead
