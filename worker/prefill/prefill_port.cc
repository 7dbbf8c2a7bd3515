#include "worker/prefill/prefill_port.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Layers that may be enqueued beyond the last finished one: enough to keep the device busy, few enough that a cancelled
// job stops soon.
constexpr int64_t kLayersAhead = 2;

// Fires with the status of whichever fires first.
Event FirstOf(const Event& a, const Event& b) {
  EventSource source;
  const auto fire = [source](const absl::Status& status) { source.Fire(status); };
  a.OnFire(fire);
  b.OnFire(fire);
  return source.event();
}

}  // namespace

PrefillPort::PrefillPort(const PrefillJob& job, const AttentionShape& shape, LayerRing ring, Device& device,
                         Stream& compute, HandoffSender& handoff, const JobStop& stop, TraceSink* trace)
    : job_(job),
      shape_(shape),
      ring_(std::move(ring)),
      device_(device),
      compute_(compute),
      handoff_(handoff),
      stop_(stop),
      trace_(trace) {}

absl::Status PrefillPort::Begin(int64_t layer) {
  if (layer > 0) EndLayer(layer - 1);
  if (layer >= kLayersAhead) RUNAHEAD_RETURN_IF_ERROR(WaitUnlessStopped(layer_ends_[layer - kLayersAhead]));
  const absl::Time stalled = MonotonicNow();
  RUNAHEAD_RETURN_IF_ERROR(WaitUnlessStopped(ring_.Free(layer)));
  ring_stall_s_ += absl::ToDoubleSeconds(MonotonicNow() - stalled);
  RUNAHEAD_RETURN_IF_ERROR(CheckNeighbours());

  received_.clear();
  wires_.clear();
  uses_.clear();
  BeforeProjection(layer);
  return absl::OkStatus();
}

absl::Status PrefillPort::CheckNeighbours() const {
  for (const Edge* edge : {job_.predecessor.get(), job_.successor.get()}) {
    const absl::Status health = edge == nullptr ? absl::OkStatus() : edge->Health();
    if (health.ok()) continue;
    stop_.Fire(JobCause::kPeer, health);
    return health;
  }
  return absl::OkStatus();
}

FrameId PrefillPort::PrefixFrame(int64_t layer) const {
  return {job_.id, static_cast<int32_t>(layer), 0};
}

FrameId PrefillPort::PartFrame(int64_t layer, int part) const {
  return {job_.id, static_cast<int32_t>(layer), part + 1};
}

void PrefillPort::Expect(const FrameId& id, const BufferRef& into, const Reception& received, JobCause source,
                         Edge* onward) {
  if (received.wire() != nullptr) wires_.push_back(received.wire());
  received_.push_back(Track(received, source, id.layer, TracePoint::kReceived));
  if (onward == nullptr) return;
  uses_.push_back(Track(onward->Send(id, into, received), JobCause::kPeer, id.layer, TracePoint::kForwarded));
}

absl::StatusOr<std::vector<KvSpan>> PrefillPort::Own(int64_t layer) {
  TraceInOrder(layer, TracePoint::kQkvBegin);
  return std::vector<KvSpan>{{PartRows(layer, job_.part), job_.tokens()}};
}

absl::StatusOr<std::vector<AttentionSequence>> PrefillPort::Publish(int64_t layer, Stream& compute) {
  TraceInOrder(layer, TracePoint::kQkvEnd);
  const Event own_ready = device_.Record(compute);
  // Ahead of the sends that fail with it.
  own_ready.OnFire([stop = stop_](const absl::Status& status) {
    if (!status.ok()) stop.Fire(JobCause::kOwn, status);
  });
  Exchange(layer, own_ready);
  if (job_.lease.has_value()) HandOff(layer, own_ready);
  RUNAHEAD_RETURN_IF_ERROR(AwaitReceived(own_ready));
  TraceInOrder(layer, TracePoint::kAttentionBegin);
  return std::vector<AttentionSequence>{View(layer)};
}

// On the stage's thread: were it the compute stream that waited, a GPU's driver that has to load a kernel would wait
// for the stream, and take no call meanwhile: none of those either that bring what the stream waits for.
absl::Status PrefillPort::AwaitReceived(const Event& own_ready) {
  if (received_.empty()) return absl::OkStatus();
  const int64_t posted_ns = absl::ToUnixNanos(MonotonicNow());
  const auto own_ready_ns = std::make_shared<std::atomic<int64_t>>(0);
  own_ready.OnFire([own_ready_ns](const absl::Status&) { *own_ready_ns = absl::ToUnixNanos(MonotonicNow()); });
  for (const Event& received : received_) RUNAHEAD_RETURN_IF_ERROR(WaitUnlessStopped(received));
  for (const auto& wire : wires_) transfers_.AddFrame(*wire);
  // The device stood idle from when the own KV was there and what waited for it was posted.
  if (const int64_t ready_ns = *own_ready_ns; ready_ns != 0) {
    const absl::Time idle = absl::FromUnixNanos(std::max(ready_ns, posted_ns)), now = MonotonicNow();
    wait_s_ += absl::ToDoubleSeconds(now - idle);
    transfers_.AddIdle(idle, now);
  }
  return absl::OkStatus();
}

void PrefillPort::SendOwn(Edge& to, int64_t layer, const Event& own_ready) {
  Trace(layer, TracePoint::kSendPosted);
  const Event sent = to.Send(PartFrame(layer, job_.part), PartRows(layer, job_.part), own_ready);
  uses_.push_back(Track(sent, JobCause::kPeer, layer, TracePoint::kSent));
}

void PrefillPort::HandOff(int64_t layer, const Event& own_ready) {
  const Slice slice{*job_.lease,    static_cast<int32_t>(layer), job_.begin(), job_.end(), SliceKind::kKv,
                    shape_.kv_dtype};
  const Event accepted = handoff_.Push(job_.decode, slice, PartRows(layer, job_.part), own_ready);
  uses_.push_back(Track(accepted, JobCause::kDecode, layer, TracePoint::kHandedOff));
}

// The layer's buffer is free when it is attended, forwarded and handed off.
void PrefillPort::EndLayer(int64_t layer) {
  TraceInOrder(layer, TracePoint::kLayerEnd);
  layer_ends_.push_back(device_.Record(compute_));
  uses_.push_back(layer_ends_.back());
  ring_.Occupy(layer, WhenAll(uses_));
}

absl::Status PrefillPort::AwaitEnqueued() const {
  return WaitUnlessStopped(device_.Record(compute_));
}

absl::Status PrefillPort::FinishPass() {
  EndLayer(static_cast<int64_t>(layer_ends_.size()));
  return WaitUnlessStopped(layer_ends_.back());
}

JobTimes PrefillPort::times() const {
  JobTimes times;
  times.wait_s = wait_s_;
  times.ring_stall_s = ring_stall_s_;
  times.transfer_s = absl::ToDoubleSeconds(transfers_.Transfer());
  times.hidden_s = absl::ToDoubleSeconds(transfers_.Hidden());
  return times;
}

BufferRef PrefillPort::Rows(int64_t layer, int64_t begin, int64_t end) const {
  const size_t row = static_cast<size_t>(shape_.kv_row_bytes());
  return ring_.Slot(layer).Slice(begin * row, (end - begin) * row);
}

absl::Status PrefillPort::WaitUnlessStopped(const Event& event) const {
  if (const auto stopped = stop_.reason(); stopped.has_value()) return stopped->status;
  if (MonotonicNow() < job_.deadline) {
    const absl::Status status = FirstOf(event, stop_.event()).Wait(job_.deadline - MonotonicNow());
    if (!absl::IsDeadlineExceeded(status) || MonotonicNow() < job_.deadline) return status;
  }
  stop_.Fire(JobCause::kRouter, absl::DeadlineExceededError("the request's deadline passed during prefill"));
  return stop_.reason()->status;
}

// A call stalls a GPU's stream for a moment: none where nobody listens.
void PrefillPort::TraceInOrder(int64_t layer, TracePoint point) {
  if (trace_ != nullptr) device_.Call(compute_, [this, layer, point] { Trace(layer, point); });
}

void PrefillPort::Trace(int64_t layer, TracePoint point) const {
  if (trace_ != nullptr) trace_->Add(job_.id, layer, point);
}

Event PrefillPort::Track(const Event& event, JobCause source, int64_t layer, TracePoint point) {
  const EventSource tracked;
  event.OnFire(
      [trace = trace_, stop = stop_, job = job_.id, tracked, source, layer, point](const absl::Status& status) {
        if (!status.ok()) stop.Fire(source, status);
        if (status.ok() && trace != nullptr) trace->Add(job, layer, point);
        tracked.Fire(status);
      });
  pending_.push_back(tracked.event());
  return pending_.back();
}

}  // namespace runahead
