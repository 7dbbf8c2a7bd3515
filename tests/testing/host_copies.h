// A hand-off for tests that look at what is handed off: slices of a device whose memory the host cannot read come to it
// as copies in host memory.
#pragma once

#include <memory>
#include <utility>

#include "kernels/base/memory.h"
#include "kernels/base/status_macros.h"
#include "worker/handoff/handoff.h"
#include "worker/link/staging_lane.h"

namespace runahead {

// Thread-safe. `device` outlives it.
class HostCopies final : public HandoffSender {
 public:
  HostCopies(std::unique_ptr<HandoffSender> inner, Device& device)
      : lane_(StagingLane::Create(device, "handoff", 1)), inner_(std::move(inner)) {}
  ~HostCopies() override {
    inner_.reset();  // first: everything fires
    lane_->Stop();
  }

  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override {
    if (bytes.size == 0) return inner_->Push(decode, slice, std::move(bytes), after);
    auto memory = AllocateHostMemory(bytes.size, nullptr);
    RUNAHEAD_CHECK(memory.ok());
    const BufferRef copy = BufferRef::Whole(*std::move(memory));
    EventSource copied;
    const Event pushed = inner_->Push(decode, slice, copy, copied.event());
    after.OnFire([lane = lane_, bytes = std::move(bytes), copy, copied](const absl::Status& status) {
      if (!status.ok()) {
        copied.Fire(status);
        return;
      }
      lane->Copy(bytes, copy, [copied](const absl::Status& end) { copied.Fire(end); });
    });
    return WhenAll({copied.event(), pushed});
  }
  void Cancel(const LeaseId& lease) override { inner_->Cancel(lease); }

 private:
  const std::shared_ptr<StagingLane> lane_;
  std::unique_ptr<HandoffSender> inner_;
};

}  // namespace runahead
