// What the ports of all schedules share: the layer ring, the own part and its hand-off, waiting, failure, times.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/handoff/handoff.h"
#include "worker/model/kv_port.h"
#include "worker/prefill/job.h"
#include "worker/prefill/layer_ring.h"
#include "worker/prefill/trace.h"
#include "worker/prefill/transfer_times.h"

namespace runahead {

// Seconds of one job on this worker.
struct JobTimes {
  double compute_s = 0;      // from the pass's beginning to its end, less waiting and what ran between its layers
  double wait_s = 0;         // the device stood idle for want of KV of other parts; the head of a chain: 0
  double ring_stall_s = 0;   // the stage waited for a free layer buffer
  double transfer_s = 0;     // KV of other parts was on the wire (wire_time.h); the head of a chain: 0
  double hidden_s = 0;       // of that, less what fell into wait_s
  bool interleaved = false;  // it ran between two layers of another
};

// One job's port. Each schedule's subclass says which KV comes from where and where it goes. Used by the stage's
// thread.
class PrefillPort : public KvPort {
 public:
  // All references outlive the port. `ring` holds job.held_tokens() a layer. `stop` is fired by whoever ends the job
  // early, also by the port when a transfer fails or time is up; then every call returns its status.
  PrefillPort(const PrefillJob& job, const AttentionShape& shape, LayerRing ring, Device& device, Stream& compute,
              HandoffSender& handoff, const JobStop& stop, TraceSink* trace);

  absl::Status Begin(int64_t layer) final;
  absl::StatusOr<std::vector<KvSpan>> Own(int64_t layer) final;
  absl::StatusOr<std::vector<AttentionSequence>> Publish(int64_t layer, Stream& compute) final;

  // Waits until the device has run what is enqueued, or the job is stopped: then that is returned.
  absl::Status AwaitEnqueued() const;
  // The pass is enqueued: records the last layer's end and waits until the device has run it all.
  absl::Status FinishPass();
  // Everything this job has under way on links and hand-off, for teardown and for Done.
  const std::vector<Event>& pending() const { return pending_; }
  // Valid after FinishPass; compute_s and interleaved are left to the caller.
  JobTimes times() const;

 protected:
  // Before the own QKV projection of the layer is enqueued; its buffer is free.
  virtual void BeforeProjection(int64_t layer) = 0;
  // The own KV of the layer is there once `own_ready` has fired: sends it, and receives what is still to come.
  virtual void Exchange(int64_t layer, const Event& own_ready) = 0;
  // What the own part attends over once all has been received.
  virtual AttentionSequence View(int64_t layer) const = 0;

  const PrefillJob& job() const { return job_; }
  // Frames are numbered by what they hold: the prefix is piece 0, part p is piece p + 1.
  FrameId PrefixFrame(int64_t layer) const;
  FrameId PartFrame(int64_t layer, int part) const;
  // The layer's KV of tokens [begin, end), and of a part.
  BufferRef Rows(int64_t layer, int64_t begin, int64_t end) const;
  BufferRef PartRows(int64_t layer, int part) const { return Rows(layer, job_.bounds[part], job_.bounds[part + 1]); }
  // The frame is in `into` once `received` has fired: attention is enqueued then, and it goes on to `onward`, where
  // there is one, as soon as it is whole (cut-through). `source` is whose failure it is when `received` fires with one.
  void Expect(const FrameId& id, const BufferRef& into, const Reception& received, JobCause source, Edge* onward);
  void SendOwn(Edge& to, int64_t layer, const Event& own_ready);
  void Trace(int64_t layer, TracePoint point) const;

 private:
  void HandOff(int64_t layer, const Event& own_ready);
  // A transfer that fails dooms the job. What is returned fires after it, when the job has been told.
  Event Track(const Event& event, JobCause source, int64_t layer, TracePoint point);
  absl::Status CheckNeighbours() const;
  void EndLayer(int64_t layer);
  // When the compute stream has got there.
  void TraceInOrder(int64_t layer, TracePoint point);
  absl::Status AwaitReceived(const Event& own_ready);
  absl::Status WaitUnlessStopped(const Event& event) const;

  const PrefillJob& job_;
  const AttentionShape& shape_;
  LayerRing ring_;
  Device& device_;
  Stream& compute_;
  HandoffSender& handoff_;
  const JobStop stop_;
  TraceSink* const trace_;

  std::vector<Event> layer_ends_;                       // by layer
  std::vector<Event> received_;                         // of the layer that is being enqueued
  std::vector<std::shared_ptr<const WireTime>> wires_;  // of those that come over a wire; set once they have fired
  std::vector<Event> uses_;                             // of its buffer: sends and hand-off
  std::vector<Event> pending_;                          // all receives, sends and pushes of the job
  double ring_stall_s_ = 0;
  double wait_s_ = 0;
  TransferTimes transfers_;
};

}  // namespace runahead
