// A hand-off from a device whose memory the host cannot read: slices are copied into pinned host memory, on a stream of
// their own while the next layers compute, and pushed from there.
#pragma once

#include <memory>

#include "kernels/base/device.h"
#include "worker/handoff/handoff.h"
#include "worker/link/staging_lane.h"

namespace runahead {

// Thread-safe; one thread of its own. Slices pass through at most `staging_bytes` of pinned memory, in the order in
// which they are ready; a receiver takes each by itself, so none waits for ever. `device` outlives it.
class StagedHandoff final : public HandoffSender {
 public:
  StagedHandoff(std::unique_ptr<HandoffSender> inner, Device& device, size_t staging_bytes);
  ~StagedHandoff() override;

  // `bytes` is device memory.
  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override;
  void Cancel(const LeaseId& lease) override { inner_->Cancel(lease); }

 private:
  const std::shared_ptr<StagingLane> lane_;
  std::unique_ptr<HandoffSender> inner_;
};

}  // namespace runahead
