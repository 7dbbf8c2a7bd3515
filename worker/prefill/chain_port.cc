#include "worker/prefill/chain_port.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Layers that may be enqueued beyond the last finished one: enough to keep the device busy, few enough that a cancelled
// job stops soon.
constexpr int64_t kLayersAhead = 2;

// Frames are numbered by what they hold: the prefix is piece 0, part p is piece p + 1.
constexpr int kPrefixPiece = 0;
int PieceOfPart(int part) {
  return part + 1;
}

// Fires with the status of whichever fires first.
Event FirstOf(const Event& a, const Event& b) {
  EventSource source;
  const auto fire = [source](const absl::Status& status) { source.Fire(status); };
  a.OnFire(fire);
  b.OnFire(fire);
  return source.event();
}

}  // namespace

ChainPort::ChainPort(const PrefillJob& job, const AttentionShape& shape, LayerRing ring, Device& device,
                     Stream& compute, HandoffSender& handoff, const EventSource& stop, TraceSink* trace)
    : job_(job),
      shape_(shape),
      ring_(std::move(ring)),
      device_(device),
      compute_(compute),
      handoff_(handoff),
      stop_(stop),
      trace_(trace) {}

absl::Status ChainPort::Begin(int64_t layer) {
  if (layer > 0) EndLayer(layer - 1);
  if (layer >= kLayersAhead) RUNAHEAD_RETURN_IF_ERROR(WaitUnlessStopped(layer_ends_[layer - kLayersAhead]));
  const absl::Time stalled = absl::Now();
  RUNAHEAD_RETURN_IF_ERROR(WaitUnlessStopped(ring_.Free(layer)));
  ring_stall_s_ += absl::ToDoubleSeconds(absl::Now() - stalled);
  if (job_.predecessor != nullptr) RUNAHEAD_RETURN_IF_ERROR(job_.predecessor->Health());
  if (job_.successor != nullptr) RUNAHEAD_RETURN_IF_ERROR(job_.successor->Health());

  received_.clear();
  uses_.clear();
  if (job_.bounds[0] > 0) Receive(layer, kPrefixPiece, 0, job_.bounds[0]);
  for (int part = 0; part < job_.part; ++part) {
    Receive(layer, PieceOfPart(part), job_.bounds[part], job_.bounds[part + 1]);
  }
  Trace(layer, TracePoint::kReceivePosted);
  return absl::OkStatus();
}

// Receives KV [begin, end) of the layer and forwards it as soon as it is whole (cut-through).
void ChainPort::Receive(int64_t layer, int piece, int64_t begin, int64_t end) {
  const FrameId id{job_.id, static_cast<int32_t>(layer), piece};
  const BufferRef into = Rows(layer, begin, end);
  const Event received = job_.part == 0 ? job_.prefix->Load(layer, into) : job_.predecessor->Recv(id, into);
  received_.push_back(received);
  all_received_.push_back(received);
  Track(received, layer, TracePoint::kReceived);
  if (job_.successor == nullptr) return;
  uses_.push_back(job_.successor->Send(id, into, received));
  Track(uses_.back(), layer, TracePoint::kForwarded);
}

absl::StatusOr<std::vector<KvSpan>> ChainPort::Own(int64_t layer) {
  device_.Call(compute_, [this, layer] { Trace(layer, TracePoint::kQkvBegin); });
  return std::vector<KvSpan>{{Rows(layer, job_.begin(), job_.end()), job_.tokens()}};
}

absl::StatusOr<std::vector<AttentionSequence>> ChainPort::Publish(int64_t layer, Stream& compute) {
  device_.Call(compute, [this, layer] { Trace(layer, TracePoint::kQkvEnd); });
  const Event own_ready = device_.Record(compute);
  const BufferRef own = Rows(layer, job_.begin(), job_.end());
  if (job_.successor != nullptr) {
    const FrameId id{job_.id, static_cast<int32_t>(layer), PieceOfPart(job_.part)};
    Trace(layer, TracePoint::kSendPosted);
    uses_.push_back(job_.successor->Send(id, own, own_ready));
    Track(uses_.back(), layer, TracePoint::kSent);
  }
  if (job_.lease.has_value()) {
    const Slice slice{*job_.lease,    static_cast<int32_t>(layer), job_.begin(), job_.end(), SliceKind::kKv,
                      shape_.kv_dtype};
    uses_.push_back(handoff_.Push(job_.decode, slice, own, own_ready));
    Track(uses_.back(), layer, TracePoint::kHandedOff);
  }
  // From here, not from the end of QKV: the stream may stand idle because the sends above were still being posted, and
  // that is no wait for the predecessor. The head of a chain without a prefix waits for nobody.
  const bool waits = !received_.empty();
  if (waits) device_.Call(compute, [this] { wait_begin_ns_ = absl::GetCurrentTimeNanos(); });
  for (const Event& received : received_) device_.WaitFor(compute, received);
  device_.Call(compute, [this, layer, waits] {
    if (waits) wait_ns_ += absl::GetCurrentTimeNanos() - wait_begin_ns_;
    Trace(layer, TracePoint::kAttentionBegin);
  });
  const KvSpan whole{Rows(layer, 0, job_.end()), job_.end()};
  return std::vector<AttentionSequence>{{0, job_.tokens(), job_.end(), {whole}}};
}

// The layer's buffer is free when it is attended, forwarded and handed off.
void ChainPort::EndLayer(int64_t layer) {
  device_.Call(compute_, [this, layer] { Trace(layer, TracePoint::kLayerEnd); });
  layer_ends_.push_back(device_.Record(compute_));
  uses_.push_back(layer_ends_.back());
  ring_.Occupy(layer, WhenAll(uses_));
}

absl::Status ChainPort::FinishPass() {
  EndLayer(static_cast<int64_t>(layer_ends_.size()));
  RUNAHEAD_RETURN_IF_ERROR(WaitUnlessStopped(layer_ends_.back()));
  // The compute stream waited for each of them, whatever their status: a failed one means that garbage was attended.
  for (const Event& received : all_received_) RUNAHEAD_RETURN_IF_ERROR(*received.status());
  return absl::OkStatus();
}

JobTimes ChainPort::times() const {
  return {0, static_cast<double>(wait_ns_.load()) * 1e-9, ring_stall_s_};
}

BufferRef ChainPort::Rows(int64_t layer, int64_t begin, int64_t end) const {
  const size_t row = static_cast<size_t>(shape_.kv_row_bytes());
  return ring_.Slot(layer).Slice(begin * row, (end - begin) * row);
}

absl::Status ChainPort::WaitUnlessStopped(const Event& event) const {
  if (const auto stopped = stop_.event().status(); stopped.has_value()) return *stopped;
  if (absl::Now() >= job_.deadline) return absl::DeadlineExceededError("the request's deadline passed during prefill");
  return FirstOf(event, stop_.event()).Wait(job_.deadline - absl::Now());
}

void ChainPort::Trace(int64_t layer, TracePoint point) const {
  if (trace_ != nullptr) trace_->Add(job_.id, layer, point);
}

// A transfer that fails dooms the job.
void ChainPort::Track(const Event& event, int64_t layer, TracePoint point) {
  pending_.push_back(event);
  event.OnFire([trace = trace_, stop = stop_, job = job_.id, layer, point](const absl::Status& status) {
    if (!status.ok()) stop.Fire(status);
    if (status.ok() && trace != nullptr) trace->Add(job, layer, point);
  });
}

}  // namespace runahead
