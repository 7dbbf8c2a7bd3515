// The sending side that all transports share: waiting, hashing, up to three sends, cancelling.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/base/progress_meter.h"
#include "worker/handoff/faults.h"
#include "worker/handoff/handoff.h"
#include "worker/handoff/slice.h"

namespace runahead {

// One attempt to send a slice. Thread-safe.
class SliceTransport {
 public:
  using Done = std::function<void(absl::StatusOr<SliceVerdict>)>;
  virtual ~SliceTransport() = default;
  // `done` runs exactly once, on any thread, when `bytes` may be reused: with the receiver's verdict, or UNAVAILABLE
  // when the receiver is gone.
  virtual void Send(const PeerId& to, const SliceHeader& header, ConstBufferRef bytes, Done done) = 0;
  // Brings what is under way to its end soon, whatever the receivers do; a Send that follows is done with UNAVAILABLE.
  virtual void Stop() = 0;
};

struct HandoffSenderOptions {
  std::function<void()> on_retry;   // a slice is sent again because it arrived corrupt; any thread, may be empty
  HandoffFaults* faults = nullptr;  // tests only
  std::shared_ptr<ProgressMeter> progress = nullptr;  // of the hashing thread; null: nobody asks
};

// Thread-safe; one thread of its own, for hashing. Destroying it cancels what is not on the wire, stops the transport
// and waits for the rest; not on a callback.
class RetryingSender final : public HandoffSender {
 public:
  explicit RetryingSender(std::shared_ptr<SliceTransport> transport, HandoffSenderOptions options = {});
  ~RetryingSender() override;

  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override;
  void Cancel(const LeaseId& lease) override;

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace runahead
