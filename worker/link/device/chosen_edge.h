// From GPU to GPU where both sides can, else through the hosts.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"
#include "worker/link/edge.h"

namespace runahead {

// Thread-safe.
class ChosenEdgeFactory final : public EdgeFactory {
 public:
  // `identity` is told to the peers as this worker's device_link. `device` opens edges from GPU to GPU, `host` all
  // others.
  ChosenEdgeFactory(std::string identity, std::unique_ptr<EdgeFactory> device, std::unique_ptr<EdgeFactory> host)
      : identity_(std::move(identity)), device_(std::move(device)), host_(std::move(host)) {}

  PeerId self() const override;
  // Which of the two it is follows from both identities alone, so that the peer chooses the same; the log says which.
  absl::StatusOr<std::shared_ptr<Edge>> Open(const PeerId& peer) override RUNAHEAD_EXCLUDES(mu_);
  void Close(const PeerId& peer) override RUNAHEAD_EXCLUDES(mu_);

  // Peers whose edges were opened and not closed.
  size_t peers() const RUNAHEAD_EXCLUDES(mu_);

 private:
  const std::string identity_;
  const std::unique_ptr<EdgeFactory> device_, host_;
  mutable Mutex mu_;
  absl::flat_hash_map<PeerKey, EdgeFactory*> chosen_ RUNAHEAD_GUARDED_BY(mu_);  // where Close finds its edge
};

}  // namespace runahead
