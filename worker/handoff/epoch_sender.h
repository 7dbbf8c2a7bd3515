// A hand-off sender that ends with its epoch, while others may still hold it.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "worker/handoff/handoff.h"

namespace runahead {

// Thread-safe.
class EpochSender final : public HandoffSender {
 public:
  explicit EpochSender(std::unique_ptr<HandoffSender> sender) : sender_(std::move(sender)) {}

  // After End: UNAVAILABLE.
  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override
      RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (sender_ != nullptr) return sender_->Push(decode, slice, std::move(bytes), after);
    }
    EventSource ended;
    ended.Fire(absl::UnavailableError("the worker has lost its router, and its links are closed"));
    return ended.event();
  }
  void Cancel(const LeaseId& lease) override RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (sender_ != nullptr) sender_->Cancel(lease);
  }

  // Destroys the sender, whatever that waits for. Not on a callback of a Push.
  void End() RUNAHEAD_EXCLUDES(mu_) {
    std::unique_ptr<HandoffSender> ended;
    MutexLock lock(mu_);
    ended = std::move(sender_);
  }

 private:
  Mutex mu_;
  std::unique_ptr<HandoffSender> sender_ RUNAHEAD_GUARDED_BY(mu_);  // null: the epoch has ended
};

}  // namespace runahead
