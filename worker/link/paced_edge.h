// Edges slowed down to a given rate, to try on one host what a chain does over slower links.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "worker/link/edge.h"
#include "worker/link/link_noise.h"

namespace runahead {

// Wraps a factory: each edge sends at most `gigabits_per_second` (10^9 bits), one frame after the other in the order in
// which they become ready; a frame is announced when its last byte would have arrived. `noise` makes some take longer;
// the n-th frame of the k-th edge that is opened draws the same whenever its seed is the same. Both ends pace what they
// send, so each direction of an edge is paced by itself. A receive's time on the wire is as if the peer's rate were
// this side's, without noise. All other calls pass through. Thread-safe; one timer thread. Frames still waiting when
// the factory goes fire CANCELLED. `clock` outlives the factory.
class PacedEdgeFactory final : public EdgeFactory {
 public:
  PacedEdgeFactory(std::unique_ptr<EdgeFactory> inner, double gigabits_per_second, Clock& clock,
                   const LinkNoise& noise = {});
  ~PacedEdgeFactory() override;

  PeerId self() const override { return inner_->self(); }
  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) override RUNAHEAD_EXCLUDES(mu_);
  void Close(const PeerId& peer) override RUNAHEAD_EXCLUDES(mu_);

 private:
  class Timer;
  class PacedEdge;

  const double bytes_per_second_;
  const LinkNoise noise_;
  const std::shared_ptr<Timer> timer_;
  Mutex mu_;
  uint64_t opened_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // edges, so far
  absl::flat_hash_map<PeerKey, std::shared_ptr<PacedEdge>> edges_ RUNAHEAD_GUARDED_BY(mu_);
  const std::unique_ptr<EdgeFactory> inner_;  // goes first: what it holds fires into the others
};

}  // namespace runahead
