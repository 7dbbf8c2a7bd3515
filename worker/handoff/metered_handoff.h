// A hand-off sender that counts what it moves.
#pragma once

#include "worker/handoff/handoff.h"
#include "worker/metrics/prefill_metrics.h"

namespace runahead {

// `sender` and `metrics` outlive every event of the pushes.
class MeteredHandoff : public HandoffSender {
 public:
  MeteredHandoff(HandoffSender& sender, PrefillMetrics& metrics) : sender_(sender), metrics_(metrics) {}
  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override;
  void Cancel(const LeaseId& lease) override { sender_.Cancel(lease); }

 private:
  HandoffSender& sender_;
  PrefillMetrics& metrics_;
};

}  // namespace runahead
