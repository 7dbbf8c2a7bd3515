#include "worker/link/device/chosen_edge.h"

#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "worker/link/device/device_fit.h"

namespace runahead {

PeerId ChosenEdgeFactory::self() const {
  PeerId self = host_->self();
  self.device_link = identity_;
  return self;
}

absl::StatusOr<std::shared_ptr<Edge>> ChosenEdgeFactory::Open(const PeerId& peer) {
  const absl::Status fits = DeviceLinkFits(identity_, peer.device_link);
  EdgeFactory* const chosen = fits.ok() ? device_.get() : host_.get();
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Edge> edge, chosen->Open(peer));
  MutexLock lock(mu_);
  if (chosen_.emplace(peer.key(), chosen).second) {
    LogInfo("link", "the edge to ", Describe(peer.key()),
            fits.ok() ? " goes from GPU to GPU" : " goes through host memory: ", fits.message());
  }
  return edge;
}

size_t ChosenEdgeFactory::peers() const {
  MutexLock lock(mu_);
  return chosen_.size();
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
