// What a prefill worker counts; its edges: link_metrics.h. Names and labels: docs/metrics.md.
#pragma once

#include <array>

#include "absl/time/time.h"
#include "server/base/metrics.h"
#include "worker/metrics/handoff_kind.h"

namespace runahead {

// Thread-safe; lives no longer than the registry.
class PrefillMetrics {
 public:
  // `registry` must outlive this.
  explicit PrefillMetrics(MetricRegistry& registry);

  // Of one job on this worker. `position` counts from 0 at the chain's head; series of positions that chains of
  // kUsualChainWidth do not have appear with their first job.
  void ObserveCompute(int position, absl::Duration computing);
  void ObserveWait(int position, absl::Duration waiting);  // for the predecessor's KV: the chain's bubble
  // KV of other workers was on the wire for so long, of which so much fell into compute.
  void ObserveTransfer(int position, absl::Duration transfer, absl::Duration hidden);
  // Of one job in a chain: what it took with waiting for KV, over what it took without; 1 where the parts fit.
  void SetImbalance(double ratio);
  void ObserveRingStall(absl::Duration stalled);  // no layer buffer was free
  void ObserveHandoff(absl::Duration ready_to_acknowledged);

  void CountTokens(int64_t tokens);
  void ObservePass(int64_t prompts);  // a pass began, of so many
  void CountInterleaved();            // a prompt ran while a longer one was half done
  void CountHandoffBytes(HandoffKind kind, int64_t bytes);
  void CountHandoffRetry();  // the receiver's checksum differed
  void CountFrameRetry();    // the same of a frame that a neighbour was sent
  void CountDamagedFrame();  // a frame of a neighbour's came damaged

  void SetBufferBytes(int64_t bytes);

 private:
  enum ByPosition { kCompute, kWait, kTransfer, kHidden, kByPosition };
  Histogram& At(ByPosition which, int position);

  MetricRegistry& registry_;
  std::array<HistogramsOnUse, kByPosition> by_position_;
  Histogram& ring_stall_;
  Histogram& handoff_;
  Histogram& pass_;
  Counter& tokens_;
  Counter& interleaved_;
  std::array<Counter*, kHandoffKinds> handoff_bytes_;
  Counter& handoff_retries_;
  Counter& frame_retries_;
  Counter& damaged_frames_;
  Gauge& imbalance_;
  Gauge& buffer_bytes_;
};

}  // namespace runahead
