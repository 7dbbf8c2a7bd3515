#include "worker/handoff/staged_handoff.h"

#include <utility>

#include "worker/link/staged_send.h"

namespace runahead {

StagedHandoff::StagedHandoff(std::unique_ptr<HandoffSender> inner, Device& device, size_t staging_bytes)
    : lane_(StagingLane::Create(device, "handoff", staging_bytes)), inner_(std::move(inner)) {
  lane_->Prepare();
}

StagedHandoff::~StagedHandoff() {
  inner_.reset();  // first: everything fires
  lane_->Stop();
}

Event StagedHandoff::Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) {
  return SendStaged(lane_, std::move(bytes), after, [&](ConstBufferRef staged, const Event& ready) {
    return inner_->Push(decode, slice, std::move(staged), ready);
  });
}

}  // namespace runahead
