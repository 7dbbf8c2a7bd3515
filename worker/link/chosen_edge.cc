#include "worker/link/chosen_edge.h"

#include "server/base/logging.h"
#include "worker/link/device_fit.h"

namespace runahead {

PeerId ChosenEdgeFactory::self() const {
  PeerId self = host_->self();
  self.device_link = identity_;
  return self;
}

EdgeFactory& ChosenEdgeFactory::Choose(const PeerId& peer) {
  MutexLock lock(mu_);
  EdgeFactory*& chosen = chosen_[peer.key()];
  if (chosen != nullptr) return *chosen;
  const absl::Status fits = DeviceLinkFits(identity_, peer.device_link);
  chosen = fits.ok() ? device_.get() : host_.get();
  LogInfo("link", "the edge to ", Describe(peer.key()),
          fits.ok() ? " goes from GPU to GPU" : " goes through host memory: ", fits.message());
  return *chosen;
}

absl::StatusOr<std::shared_ptr<Edge>> ChosenEdgeFactory::Open(const PeerId& peer) {
  return Choose(peer).Open(peer);
}

void ChosenEdgeFactory::Close(const PeerId& peer) {
  EdgeFactory* chosen = host_.get();
  {
    MutexLock lock(mu_);
    if (const auto found = chosen_.find(peer.key()); found != chosen_.end()) {
      chosen = found->second;
      chosen_.erase(found);
    }
  }
  chosen->Close(peer);
}

}  // namespace runahead
