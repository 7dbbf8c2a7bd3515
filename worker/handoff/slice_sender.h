// The sending side that all transports share: waiting until a slice is computed, cancelling, and what an answer means.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/handoff/handoff.h"
#include "worker/link/transfer.h"
#include "worker/metrics/prefill_metrics.h"

namespace runahead {

// Sends slices, up to kTransferAttempts times. Thread-safe.
class SliceTransport {
 public:
  using Done = std::function<void(absl::Status)>;
  virtual ~SliceTransport() = default;
  // `done` runs exactly once, on any thread, when `bytes` may be reused: with the receiver's verdict (CodeOf),
  // UNAVAILABLE when the receiver is gone, or RESOURCE_EXHAUSTED without memory to send it from. `bytes` has the
  // slice's seed.
  virtual void Send(const PeerId& to, const Slice& slice, Outbound bytes, Done done) = 0;
  // Brings what is under way to its end soon, whatever the receivers do; a Send that follows is done with UNAVAILABLE.
  virtual void Stop() = 0;
};

struct HandoffSenderOptions {
  // Both on any thread; may be empty. A slice is sent again because it arrived corrupt.
  std::function<void()> on_retry;
  // A slice of `bytes` was accepted, so long after it was there to be sent.
  std::function<void(const Slice& slice, size_t bytes, absl::Duration took)> on_accepted = {};
  // Slices are memory of its device, and pass through it; null: memory of the host. It ends after the sender.
  std::shared_ptr<StagingLane> lane = nullptr;
};

// Counts in `metrics`, which outlive the sender.
HandoffSenderOptions CountedBy(PrefillMetrics& metrics);

// Thread-safe. Destroying it cancels what is not on the wire, stops the transport and waits for the rest; not on a
// callback.
class SliceSender final : public HandoffSender {
 public:
  explicit SliceSender(std::shared_ptr<SliceTransport> transport, HandoffSenderOptions options = {});
  ~SliceSender() override;

  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override;
  void Cancel(const LeaseId& lease) override;

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace runahead
