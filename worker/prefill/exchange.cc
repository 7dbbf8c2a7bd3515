#include "worker/prefill/exchange.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Layers that may be enqueued beyond the last finished one: enough to keep the device busy, few enough that a cancelled
// job stops soon.
constexpr int64_t kLayersAhead = 2;

}  // namespace

Exchange::Exchange(const PrefillJob& job, const Model& model, LayerRing ring, Device& device, Stream& compute,
                   HandoffSender& handoff, const JobStop& stop, TraceSink* trace)
    : job_(job),
      model_(model),
      ring_(std::move(ring)),
      device_(device),
      compute_(compute),
      handoff_(handoff),
      stop_(stop),
      trace_(JobTrace::Of(job, trace)) {}

Event Exchange::RunBefore(int64_t layer) const {
  return layer < kLayersAhead ? Event() : layer_ends_[layer - kLayersAhead];
}

absl::Status Exchange::Receive(int64_t layer) {
  RUNAHEAD_RETURN_IF_ERROR(CheckNeighbours());
  received_.clear();
  wires_.clear();
  uses_.clear();
  BeforeOwn(layer);
  return absl::OkStatus();
}

absl::Status Exchange::CheckNeighbours() const {
  for (const Edge* edge : {job_.predecessor.get(), job_.successor.get()}) {
    const absl::Status health = edge == nullptr ? absl::OkStatus() : edge->Health();
    if (health.ok()) continue;
    stop_.Fire(JobCause::kPeer, health);
    return health;
  }
  return absl::OkStatus();
}

FrameId Exchange::PrefixFrame(int64_t layer) const {
  return {job_.id, static_cast<int32_t>(layer), 0};
}

FrameId Exchange::PartFrame(int64_t layer, int part) const {
  return {job_.id, static_cast<int32_t>(layer), part + 1};
}

bool Exchange::has_windows() const {
  const std::vector<int64_t> windows = model_.windows();
  return std::any_of(windows.begin(), windows.end(), [](int64_t window) { return window > 0; });
}

// Parts that come later see no more of what lies before this one. Behind the last layer there is only the last token,
// unless the prompt is scored.
int64_t Exchange::FirstNeeded(int64_t layer, int part) const {
  const bool last = layer + 1 == model_.config().layers && job_.prompt_logprobs < 0;
  return FirstSeen(model_.attention(layer).window, last ? job_.bounds.back() - 1 : job_.bounds[part]);
}

Reception Exchange::Coming(const FrameId& id, const BufferRef& into, const Reception& received, JobCause source) {
  const JobTrace::Transfer transfer{id.layer, TracePoint::kReceived, into.size, nullptr, received.wire()};
  return Reception(Track(received, source, transfer), received.wire(), received.sum());
}

void Exchange::Expect(const Reception& coming) {
  if (coming.wire() != nullptr) wires_.push_back(coming.wire());
  received_.push_back(coming);
}

bool Exchange::MayComeAhead(int64_t layer) const {
  if (layer >= model_.config().layers) return false;
  const std::optional<absl::Status> free = ring_.Free(layer).status();
  return free.has_value() && free->ok();
}

void Exchange::Forward(Edge& to, const FrameId& id, const BufferRef& rows, const Reception& received, bool whole) {
  const Event sent = to.SendSummed(id, rows, received, whole ? received.sum() : nullptr);
  uses_.push_back(
      Track(sent, JobCause::kPeer, {id.layer, TracePoint::kForwarded, rows.size, nullptr, received.wire()}));
}

BufferRef Exchange::Own(int64_t layer) {
  TraceInOrder(layer, TracePoint::kQkvBegin);
  return ring_.AllKv(layer);
}

XRows Exchange::OwnX(int64_t layer) const {
  return ring_.rows().x == 0 ? XRows() : XIn(ring_.AllX(layer));
}

XRows Exchange::XIn(BufferRef buffer) const {
  return {std::move(buffer), XFormOf(model_, device_), model_.config().hidden};
}

Event Exchange::Send(int64_t layer) {
  TraceInOrder(layer, TracePoint::kQkvEnd);
  const Event own_ready = OwnReady();
  AfterOwn(layer, own_ready);
  if (job_.lease.has_value()) {
    HandOff(layer, own_ready);
    HandOffX(layer, own_ready);
  }
  return WhenAll(received_);
}

// Fires when the layer's own KV, enqueued by now, is there; with the reason where the job has been stopped meanwhile:
// nothing leaves it then, neither this layer nor those enqueued behind it.
Event Exchange::OwnReady() {
  const Event computed = device_.Record(compute_);
  const EventSource ready(computed.native());
  own_ready_ns_ = std::make_shared<std::atomic<int64_t>>(0);
  computed.OnFire([stop = stop_, at = own_ready_ns_, ready](const absl::Status& status) {
    *at = absl::ToUnixNanos(MonotonicNow());
    if (!status.ok()) stop.Fire(JobCause::kOwn, status);
    const auto reason = stop.reason();
    ready.Fire(reason.has_value() ? reason->status : absl::OkStatus());
  });
  return ready.event();
}

BufferRef Exchange::View(int64_t layer) {
  for (const auto& wire : wires_) transfers_.AddFrame(*wire);
  TraceInOrder(layer, TracePoint::kAttentionBegin);
  return ring_.AllKv(layer);
}

void Exchange::AddIdle(absl::Time begin, absl::Time end) {
  if (received_.empty()) return;  // nothing was waited for, however late the stage looks
  const int64_t ready_ns = *own_ready_ns_;
  if (ready_ns == 0) return;
  begin = std::max(begin, absl::FromUnixNanos(ready_ns));
  if (end <= begin) return;
  if (trace_ != nullptr) trace_->Waited(static_cast<int64_t>(layer_ends_.size()), begin, end);
  idle_s_ += absl::ToDoubleSeconds(end - begin);
  transfers_.AddIdle(begin, end);
}

void Exchange::SendOwn(Edge& to, int64_t layer, int64_t begin, const Event& own_ready) {
  if (begin >= job_.end()) return;
  Posted(layer, TracePoint::kSendPosted);
  const BufferRef rows = Rows(layer, begin, job_.end());
  const Event sent = to.Send(PartFrame(layer, job_.part), rows, own_ready);
  uses_.push_back(Track(sent, JobCause::kPeer, {layer, TracePoint::kSent, rows.size, own_ready_ns_, nullptr}));
}

int64_t Exchange::FirstDecoded(int64_t layer) const {
  return FirstSeen(model_.attention(layer).window, job_.bounds.back());
}

void Exchange::HandOff(int64_t layer, const Event& own_ready) {
  const int64_t from = std::max(job_.own_kv_from(), FirstDecoded(layer));
  if (from >= job_.end()) return;
  const Slice slice{*job_.lease,    static_cast<int32_t>(layer), from, job_.end(),
                    SliceKind::kKv, FormOf(model_.kv_dtype())};
  const BufferRef rows = Rows(layer, from, job_.end());
  const Event accepted = handoff_.Push(job_.decode, slice, rows, own_ready);
  uses_.push_back(
      Track(accepted, JobCause::kDecode, {layer, TracePoint::kHandedOff, rows.size, own_ready_ns_, nullptr}));
}

void Exchange::HandOffX(int64_t layer, const Event& own_ready) {
  const int64_t from = std::max(job_.begin(), FirstDecoded(layer)), end = job_.begin() + job_.own_x_tokens();
  if (from >= end) return;
  const XRows x = XIn(ring_.X(layer)).Rows(from - job_.begin(), end - from);
  const Slice slice{*job_.lease, static_cast<int32_t>(layer), from, end, SliceKind::kX, x.form};
  const Event accepted = handoff_.Push(job_.decode, slice, x.ref, own_ready);
  uses_.push_back(
      Track(accepted, JobCause::kDecode, {layer, TracePoint::kXHandedOff, x.ref.size, own_ready_ns_, nullptr}));
}

void Exchange::Attended(int64_t layer) {
  TraceInOrder(layer, TracePoint::kAttentionEnd);
}

void Exchange::End(int64_t layer) {
  TraceInOrder(layer, TracePoint::kLayerEnd);
  layer_ends_.push_back(device_.Record(compute_));
  layer_ends_.back().OnFire([stop = stop_](const absl::Status& status) {
    if (!status.ok()) stop.Fire(JobCause::kOwn, status);
  });
  uses_.push_back(layer_ends_.back());
  ring_.Occupy(layer, WhenAll(uses_));
}

BufferRef Exchange::Rows(int64_t layer, int64_t begin, int64_t end) const {
  const size_t row = static_cast<size_t>(model_.kv_row_bytes());
  return ring_.Kv(layer).Slice(begin * row, (end - begin) * row);
}

// A call stalls a GPU's stream for a moment: none where nobody listens.
void Exchange::TraceInOrder(int64_t layer, TracePoint point) {
  if (trace_ != nullptr) device_.Call(compute_, [trace = trace_, layer, point] { trace->Ran(layer, point); });
}

void Exchange::Posted(int64_t layer, TracePoint point) const {
  if (trace_ != nullptr) trace_->Posted(layer, point);
}

void Exchange::Sampled() const {
  if (trace_ != nullptr) trace_->Ran(static_cast<int64_t>(layer_ends_.size()), TracePoint::kFirstToken);
}

Event Exchange::Track(const Event& event, JobCause source, JobTrace::Transfer transfer) {
  const EventSource tracked;
  event.OnFire(
      [trace = trace_, stop = stop_, tracked, source, transfer = std::move(transfer)](const absl::Status& status) {
        // Without memory to send from nobody else was asked.
        if (!status.ok()) stop.Fire(absl::IsResourceExhausted(status) ? JobCause::kOwn : source, status);
        if (status.ok() && trace != nullptr) trace->Moved(transfer);
        tracked.Fire(status);
      });
  pending_.push_back(tracked.event());
  return pending_.back();
}

}  // namespace runahead
