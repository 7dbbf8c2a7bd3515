// KV-Runahead's side of the forward pass: receive from the predecessor, forward, send, hand off.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "worker/handoff/handoff.h"
#include "worker/model/kv_port.h"
#include "worker/prefill/job.h"
#include "worker/prefill/layer_ring.h"
#include "worker/prefill/trace.h"

namespace runahead {

// Seconds of one job on this worker.
struct JobTimes {
  double compute_s = 0;     // from the pass's beginning to its end, less waiting
  double wait_s = 0;        // the compute stream waited for KV from before its part (the chain's bubble); the head: 0
  double ring_stall_s = 0;  // the stage waited for a free layer buffer
};

// One job's port. In every layer: receives KV [0, begin) piece by piece into one contiguous buffer, forwards each piece
// as soon as it is whole, and sends and hands off its own piece once it is computed. Used by the stage's thread; the
// edges' and streams' threads only touch what is atomic.
class ChainPort : public KvPort {
 public:
  // All references outlive the port. `stop` is fired by whoever ends the job early, also by the port when a transfer
  // fails; then every call returns its status.
  ChainPort(const PrefillJob& job, const AttentionShape& shape, LayerRing ring, Device& device, Stream& compute,
            HandoffSender& handoff, const EventSource& stop, TraceSink* trace);

  absl::Status Begin(int64_t layer) override;
  absl::StatusOr<std::vector<KvSpan>> Own(int64_t layer) override;
  absl::StatusOr<std::vector<AttentionSequence>> Publish(int64_t layer, Stream& compute) override;

  // The pass is enqueued: records the last layer's end, waits until the device has run it all, and checks that all that
  // was received came whole.
  absl::Status FinishPass();
  // Everything this job has under way on links and hand-off, for teardown and for Done.
  const std::vector<Event>& pending() const { return pending_; }
  // Valid after FinishPass; compute_s is left to the caller.
  JobTimes times() const;

 private:
  BufferRef Rows(int64_t layer, int64_t begin, int64_t end) const;
  void Track(const Event& event, int64_t layer, TracePoint point);
  void Receive(int64_t layer, int piece, int64_t begin, int64_t end);
  void EndLayer(int64_t layer);
  absl::Status WaitUnlessStopped(const Event& event) const;
  void Trace(int64_t layer, TracePoint point) const;

  const PrefillJob& job_;
  const AttentionShape& shape_;
  LayerRing ring_;
  Device& device_;
  Stream& compute_;
  HandoffSender& handoff_;
  const EventSource stop_;
  TraceSink* const trace_;

  std::vector<Event> layer_ends_;    // by layer
  std::vector<Event> received_;      // of the layer that is being enqueued
  std::vector<Event> uses_;          // of its buffer: sends and hand-off
  std::vector<Event> all_received_;  // of the job
  std::vector<Event> pending_;       // all receives, sends and pushes of the job
  double ring_stall_s_ = 0;
  std::atomic<int64_t> wait_begin_ns_{0};  // written and read on the compute stream's thread
  std::atomic<int64_t> wait_ns_{0};
};

}  // namespace runahead
