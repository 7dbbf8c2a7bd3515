#include "worker/prefill/job_trace.h"

#include "kernels/base/monotonic.h"

namespace runahead {
namespace {

// Of what runs between two points; null: nothing that has a name.
const char* ComputeSpan(TracePoint from, TracePoint to) {
  if (to == TracePoint::kQkvEnd) return "qkv";
  if (to == TracePoint::kAttentionEnd) return "attention";
  if (to == TracePoint::kLayerEnd && from == TracePoint::kAttentionEnd) return "mlp";
  if (to == TracePoint::kFirstToken) return "sample";
  return nullptr;
}

const char* TransferSpan(TracePoint end) {
  switch (end) {
    case TracePoint::kReceived:
      return "receive";
    case TracePoint::kForwarded:
      return "forward";
    case TracePoint::kSent:
      return "send";
    case TracePoint::kHandedOff:
      return "handoff";
    case TracePoint::kXHandedOff:
      return "x_handoff";
    case TracePoint::kReceivePosted:
    case TracePoint::kQkvBegin:
    case TracePoint::kQkvEnd:
    case TracePoint::kSendPosted:
    case TracePoint::kAttentionBegin:
    case TracePoint::kAttentionEnd:
    case TracePoint::kLayerEnd:
    case TracePoint::kFirstToken:
      break;  // ends no transfer
  }
  return "";
}

}  // namespace

std::shared_ptr<JobTrace> JobTrace::Of(const PrefillJob& job, TraceSink* sink) {
  if (sink == nullptr && job.spans == nullptr) return nullptr;
  return std::shared_ptr<JobTrace>(new JobTrace(job, sink));
}

JobTrace::JobTrace(const PrefillJob& job, TraceSink* sink)
    : job_(job.id), tokens_(job.tokens()), sink_(sink), spans_(job.spans) {}

void JobTrace::Posted(int64_t layer, TracePoint point) const {
  if (sink_ != nullptr) sink_->Add(job_, layer, point);
}

void JobTrace::Ran(int64_t layer, TracePoint point) {
  if (spans_ != nullptr) {
    const absl::Time now = MonotonicNow();
    if (const char* const name = ComputeSpan(last_, point)) {
      const bool sampled = point == TracePoint::kFirstToken;
      spans_->Add(name, sampled ? -1 : layer, at_, now, sampled ? 1 : tokens_);
    }
    last_ = point;
    at_ = now;
  }
  Posted(layer, point);
}

void JobTrace::Moved(const Transfer& transfer) const {
  if (spans_ != nullptr && (transfer.ready != nullptr || transfer.wire != nullptr)) {
    const bool received = transfer.point == TracePoint::kReceived, passed_on = transfer.point == TracePoint::kForwarded;
    absl::Time begin = transfer.ready == nullptr ? transfer.wire->first : absl::FromUnixNanos(*transfer.ready);
    if (passed_on) begin = transfer.wire->last;
    spans_->Add(TransferSpan(transfer.point), transfer.layer, begin, received ? transfer.wire->last : MonotonicNow(),
                static_cast<int64_t>(transfer.bytes));
  }
  Posted(transfer.layer, transfer.point);
}

void JobTrace::Waited(int64_t layer, absl::Time begin, absl::Time end) const {
  if (spans_ != nullptr) spans_->Add("wait", layer, begin, end);
}

}  // namespace runahead
