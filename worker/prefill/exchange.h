// What the exchanges of all schedules share: the layer ring, the own part and its hand-off, failure, times.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/handoff/handoff.h"
#include "worker/model/model.h"
#include "worker/model/x_form.h"
#include "worker/prefill/job.h"
#include "worker/prefill/job_trace.h"
#include "worker/prefill/layer_ring.h"
#include "worker/prefill/trace.h"
#include "worker/prefill/transfer_times.h"

namespace runahead {

// One job's KV on this worker, layer by layer: what of it comes from other workers, and where the own goes, with X, or
// X in its place, where the decode worker takes that. Each schedule's subclass says which KV comes from whom and who
// gets it. A loop calls, for each layer in turn: Receive, Own and OwnX, Send, View, End. Nothing here waits. Used by
// the stage's thread.
class Exchange {
 public:
  // All references outlive the exchange. `ring` holds KV of job.held_tokens() a layer, and X of job.tokens() where the
  // job, or one that shares its slots, hands off X of some (PrefillJob::own_x_tokens). `stop` is fired by whoever ends
  // the job early, also by the exchange when a transfer fails.
  Exchange(const PrefillJob& job, const Model& model, LayerRing ring, Device& device, Stream& compute,
           HandoffSender& handoff, const JobStop& stop, TraceSink* trace);
  virtual ~Exchange() = default;

  // Of each layer's buffer.
  virtual KvLayout Layout() const = 0;
  // `layer` is begun once these have fired: the layers have run before which it must not be enqueued; its buffer is
  // free.
  Event RunBefore(int64_t layer) const;
  Event BufferFree(int64_t layer) const { return ring_.Free(layer); }

  // Posts what may come before the own KV is there. UNAVAILABLE when a neighbour is dead.
  absl::Status Receive(int64_t layer);
  // The layer's buffer, of all jobs that share it: for K and V of the pass, the own part's where the pass's layout
  // says.
  BufferRef Own(int64_t layer);
  // For X of all rows of the pass, as it is handed off; without a buffer where nobody's is.
  XRows OwnX(int64_t layer) const;
  // The own KV and X are enqueued: sends KV and hands both off. Fires when all KV that the part attends over is here.
  Event Send(int64_t layer);
  // The same buffer, with what the own part attends over: Send's event has fired with OK.
  BufferRef View(int64_t layer);
  // The layer's attention is enqueued, and nothing behind it yet.
  void Attended(int64_t layer);
  // The layer is enqueued. Its buffer is free when it is attended, forwarded and handed off.
  void End(int64_t layer);

  // The device stood idle from `begin` on, or from when the own KV of the layer was there, to `end`, for want of what
  // Send's event waits for.
  void AddIdle(absl::Time begin, absl::Time end);
  // The first token is drawn.
  void Sampled() const;
  // Everything this job has under way on links and hand-off, for teardown and for Done.
  const std::vector<Event>& pending() const { return pending_; }
  double idle_s() const { return idle_s_; }
  const TransferTimes& transfers() const { return transfers_; }

 protected:
  // Before the own KV of the layer is enqueued; its buffer is free.
  virtual void BeforeOwn(int64_t layer) = 0;
  // The own KV of the layer is there once `own_ready` has fired: sends it, and receives what is still to come.
  virtual void AfterOwn(int64_t layer, const Event& own_ready) = 0;
  const PrefillJob& job() const { return job_; }
  // Frames are numbered by what they hold: the prefix is piece 0, part p is piece p + 1.
  FrameId PrefixFrame(int64_t layer) const;
  FrameId PartFrame(int64_t layer, int part) const;
  // The layer's KV of tokens [begin, end).
  BufferRef Rows(int64_t layer, int64_t begin, int64_t end) const;
  bool has_windows() const;
  // The first token of which the worker of part `part`, or one behind it, attends to KV in the layer.
  int64_t FirstNeeded(int64_t layer, int part) const;
  // `received` fills `into`. `source` is whose failure it is when that fires with an error, which ends the job. What is
  // returned fires after it.
  Reception Coming(const FrameId& id, const BufferRef& into, const Reception& received, JobCause source);
  // Attention of the layer that is being enqueued waits for it.
  void Expect(const Reception& coming);
  // There is such a layer, and its buffer is free by now, before its turn.
  bool MayComeAhead(int64_t layer) const;
  // `rows` of such a frame, or all of them (`whole`), go on as soon as it is here, checked (cut-through).
  void Forward(Edge& to, const FrameId& id, const BufferRef& rows, const Reception& received, bool whole);
  // The own KV of the layer from token `begin` on.
  void SendOwn(Edge& to, int64_t layer, int64_t begin, const Event& own_ready);
  void Posted(int64_t layer, TracePoint point) const;

 private:
  XRows XIn(BufferRef buffer) const;
  Event OwnReady();
  // The first token that decode attends to in the layer: its first query follows the prompt.
  int64_t FirstDecoded(int64_t layer) const;
  void HandOff(int64_t layer, const Event& own_ready);
  void HandOffX(int64_t layer, const Event& own_ready);
  // A transfer that fails dooms the job. What is returned fires after it, when the job has been told.
  Event Track(const Event& event, JobCause source, JobTrace::Transfer transfer);
  absl::Status CheckNeighbours() const;
  // When the compute stream has got there.
  void TraceInOrder(int64_t layer, TracePoint point);

  const PrefillJob& job_;
  const Model& model_;
  LayerRing ring_;
  Device& device_;
  Stream& compute_;
  HandoffSender& handoff_;
  const JobStop stop_;
  const std::shared_ptr<JobTrace> trace_;  // null: nobody listens

  std::vector<Event> layer_ends_;                       // by layer
  std::vector<Event> received_;                         // of the layer that is being enqueued
  std::vector<std::shared_ptr<const WireTime>> wires_;  // of those that come over a wire; set once they have fired
  std::vector<Event> uses_;                             // of its buffer: sends and hand-off
  std::vector<Event> pending_;                          // all receives, sends and pushes of the job
  JobTrace::Moment own_ready_ns_;                       // when the layer's own KV was there; 0: it is not yet
  double idle_s_ = 0;
  TransferTimes transfers_;
};

}  // namespace runahead
