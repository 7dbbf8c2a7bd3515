#include "worker/metrics/prefill_metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// In a pass, of a token each: as many as it has rows (scheduler/placement/together.h).
constexpr int64_t kMostPrompts = 128;

struct NameAndHelp {
  const char* name;
  const char* help;
};
constexpr NameAndHelp kByPositionNames[] = {
    {"runahead_prefill_compute_seconds", "Time a job computed: of a pass of several, its share by tokens"},
    {"runahead_prefill_wait_seconds", "Time a job waited for KV of other workers"},
    {"runahead_prefill_transfer_seconds", "Time KV of other workers was on the wire"},
    {"runahead_prefill_transfer_hidden_seconds", "What of the transfer fell into compute"},
};

}  // namespace

PrefillMetrics::PrefillMetrics(MetricRegistry& registry)
    : registry_(registry),
      ring_stall_(registry.AddHistogram("runahead_prefill_ring_stall_seconds",
                                        "Time a job stood still because no layer buffer was free", TtftBuckets())),
      handoff_(registry.AddHistogram("runahead_handoff_seconds",
                                     "From a slice of KV being ready to the decode worker's acknowledgement",
                                     TtftBuckets())),
      pass_(registry.AddHistogram("runahead_prefill_pass_size", "Prompts in a pass", PowerOfTwoBuckets(kMostPrompts))),
      tokens_(registry.AddCounter("runahead_prefill_tokens_total", "Prompt tokens computed here")),
      interleaved_(registry.AddCounter("runahead_prefill_interleaved_total",
                                       "Prompts that ran while a longer one was half done")),
      handoff_retries_(
          registry.AddCounter("runahead_handoff_retries_total", "Slices that were sent again", {{"cause", "corrupt"}})),
      frame_retries_(registry.AddCounter("runahead_link_retries_total",
                                         "Frames that were sent to a chain neighbour again", {{"cause", "corrupt"}})),
      damaged_frames_(registry.AddCounter("runahead_link_checksum_failures_total",
                                          "Frames of chain neighbours that arrived corrupt")),
      imbalance_(registry.AddGauge("runahead_prefill_imbalance_ratio",
                                   "Of the last job in a chain: its time with waiting for KV over that without")),
      buffer_bytes_(registry.AddGauge("runahead_prefill_buffer_bytes", "Memory held by layer buffers")) {
  for (const ByPosition which : {kCompute, kWait, kTransfer, kHidden}) {
    for (int position = 0; position < kUsualChainWidth; ++position) At(which, position);
  }
  for (int i = 0; i < kHandoffKinds; ++i) {
    handoff_bytes_[i] = &registry.AddCounter("runahead_handoff_bytes_total", "Bytes handed to decode workers",
                                             {{"kind", kHandoffKindNames[i]}});
  }
}

Histogram& PrefillMetrics::At(ByPosition which, int position) {
  return by_position_[which].At(std::clamp(position, 0, kMaxChainWidth - 1), [&](int index) -> Histogram& {
    return registry_.AddHistogram(kByPositionNames[which].name, kByPositionNames[which].help, TtftBuckets(),
                                  {{"position", absl::StrCat(index)}});
  });
}

void PrefillMetrics::ObserveCompute(int position, absl::Duration computing) {
  At(kCompute, position).Observe(absl::ToDoubleSeconds(computing));
}

void PrefillMetrics::ObserveWait(int position, absl::Duration waiting) {
  At(kWait, position).Observe(absl::ToDoubleSeconds(waiting));
}

void PrefillMetrics::ObserveTransfer(int position, absl::Duration transfer, absl::Duration hidden) {
  At(kTransfer, position).Observe(absl::ToDoubleSeconds(transfer));
  At(kHidden, position).Observe(absl::ToDoubleSeconds(hidden));
}

void PrefillMetrics::SetImbalance(double ratio) {
  imbalance_.Set(ratio);
}

void PrefillMetrics::ObserveRingStall(absl::Duration stalled) {
  ring_stall_.Observe(absl::ToDoubleSeconds(stalled));
}

void PrefillMetrics::ObserveHandoff(absl::Duration ready_to_acknowledged) {
  handoff_.Observe(absl::ToDoubleSeconds(ready_to_acknowledged));
}

void PrefillMetrics::CountTokens(int64_t tokens) {
  tokens_.Increment(static_cast<double>(tokens));
}

void PrefillMetrics::ObservePass(int64_t prompts) {
  pass_.Observe(static_cast<double>(prompts));
}

void PrefillMetrics::CountInterleaved() {
  interleaved_.Increment();
}

void PrefillMetrics::CountHandoffBytes(HandoffKind kind, int64_t bytes) {
  handoff_bytes_[static_cast<int>(kind)]->Increment(static_cast<double>(bytes));
}

void PrefillMetrics::CountHandoffRetry() {
  handoff_retries_.Increment();
}

void PrefillMetrics::CountFrameRetry() {
  frame_retries_.Increment();
}

void PrefillMetrics::CountDamagedFrame() {
  damaged_frames_.Increment();
}

void PrefillMetrics::SetBufferBytes(int64_t bytes) {
  buffer_bytes_.Set(static_cast<double>(bytes));
}

}  // namespace runahead
