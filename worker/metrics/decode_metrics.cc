#include "worker/metrics/decode_metrics.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/limits.h"

namespace runahead {
namespace {

constexpr const char* kTierNames[kKvTiers] = {"device", "host"};
constexpr const char* kLaneNames[kKvLanes] = {"recomputed", "streamed", "host", "resident"};
constexpr const char* kAnswerNames[kSliceAnswers] = {"accepted", "corrupt", "no_lease", "bad_range"};

Gauge& LayerGauge(MetricRegistry& registry, const char* work) {
  return registry.AddGauge("runahead_kvpr_layer_seconds", "What a layer of a step takes, by the steps so far",
                           {{"work", work}});
}
Gauge& PositionGauge(MetricRegistry& registry, const char* work) {
  return registry.AddGauge("runahead_kvpr_position_seconds", "What a position takes in a layer, by the steps so far",
                           {{"work", work}});
}
Gauge& HostGauge(MetricRegistry& registry, const char* beside) {
  return registry.AddGauge("runahead_kvpr_host_bytes_per_second",
                           "Host memory read by the host lane, and copies beside", {{"beside", beside}});
}
Gauge& LinkGauge(MetricRegistry& registry, const char* direction, int64_t block_bytes) {
  return registry.AddGauge("runahead_link_copy_bytes_per_second",
                           "Copies of one size, one at a time, at start and when idle",
                           {{"direction", direction}, {"block_bytes", absl::StrCat(block_bytes)}});
}

Counter& StepSeconds(MetricRegistry& registry, const char* kind) {
  return registry.AddCounter("runahead_kvpr_step_seconds_total", "Steps, as they took and as was predicted",
                             {{"kind", kind}});
}

// 0.1, 0.2, .. 1.
std::vector<double> TenthBuckets() {
  std::vector<double> bounds;
  for (int tenth = 1; tenth <= 10; ++tenth) bounds.push_back(tenth / 10.0);
  return bounds;
}

}  // namespace

DecodeMetrics::DecodeMetrics(MetricRegistry& registry)
    : step_(registry.AddHistogram("runahead_decode_step_seconds", "One step of the whole batch", TokenBuckets())),
      batch_size_(
          registry.AddHistogram("runahead_decode_batch_size", "Sequences in a step", PowerOfTwoBuckets(kMostBatch))),
      kvpr_split_(registry.AddHistogram("runahead_kvpr_split_tokens",
                                        "Positions recomputed of a sequence in a step, the mean over its sequences",
                                        PowerOfTwoBuckets(kMostContext))),
      kvpr_recompute_(registry.AddHistogram("runahead_kvpr_recompute_seconds",
                                            "Recomputation of K and V from X in a step", TokenBuckets())),
      kvpr_transfer_(registry.AddHistogram("runahead_kvpr_transfer_seconds",
                                           "Copies of KV and X to the device for a step", TokenBuckets())),
      kvpr_overlap_(registry.AddHistogram("runahead_kvpr_overlap_ratio",
                                          "Share of a step's copies, or of its computing where that takes less time, "
                                          "that lies inside the other",
                                          TenthBuckets())),
      link_bandwidth_(registry.AddGauge("runahead_link_bandwidth_bytes_per_second",
                                        "Copies from host memory to the device, as measured; 0 without a link")),
      link_latency_(registry.AddGauge("runahead_link_copy_latency_seconds",
                                      "A copy of a few bytes to the device, at start and when idle")),
      speeds_{LayerGauge(registry, "project"), PositionGauge(registry, "recompute"), PositionGauge(registry, "attend"),
              LayerGauge(registry, "signal"),  HostGauge(registry, "nothing"),       HostGauge(registry, "copies")},
      predicted_seconds_(StepSeconds(registry, "predicted")),
      measured_seconds_(StepSeconds(registry, "measured")),
      leases_(registry.AddGauge("runahead_kv_leases", "Leases alive")),
      leases_expired_(registry.AddCounter("runahead_kv_leases_expired_total", "Leases that ran out unreleased")),
      checksum_failures_(
          registry.AddCounter("runahead_handoff_checksum_failures_total", "Slices that arrived corrupt")),
      saturated_(registry.AddCounter("runahead_static_window_saturated_values_total",
                                     "Values of new rows outside the range of their prompt, by which static windows "
                                     "of 8 bits quantise")),
      prompt_rows_(registry.AddCounter("runahead_decode_prompt_tokens_total",
                                       "Tokens of prompts that steps computed, for they were not handed off, or again "
                                       "since their sequence was parked")),
      parked_(registry.AddGauge("runahead_decode_parked_requests",
                                "Sequences that wait for memory, with none of their own")),
      parkings_(registry.AddCounter("runahead_decode_parkings_total",
                                    "How often a sequence was parked: its memory went to others, and it waits")),
      rebuilt_(registry.AddCounter("runahead_decode_rebuilt_tokens_total",
                                   "Tokens, of prompts and output, that steps computed again since their sequence was "
                                   "parked")),
      late_masks_(registry.AddCounter("runahead_decode_late_masks_total",
                                      "Tokens that a step did not draw, for it was not known yet what the form of the "
                                      "answer allows; a later step draws them")) {
  for (int i = 0; i < kKvTiers; ++i) {
    const MetricLabels labels = {{"tier", kTierNames[i]}};
    kv_bytes_[i] = &registry.AddGauge("runahead_kv_bytes", "KV cache memory in use", labels);
    kv_promised_bytes_[i] = &registry.AddGauge("runahead_kv_promised_bytes",
                                               "KV cache memory in use or promised to leases that grow", labels);
    kv_kept_bytes_[i] = &registry.AddGauge("runahead_kv_kept_bytes",
                                           "KV cache memory not in use that holds KV of sequences that ended", labels);
    kv_kept_evicted_bytes_[i] = &registry.AddCounter(
        "runahead_kv_kept_evicted_bytes_total", "Of KV kept of sequences that ended, memory that was needed", labels);
    kv_capacity_bytes_[i] = &registry.AddGauge("runahead_kv_capacity_bytes", "KV cache memory in all", labels);
  }
  for (int i = 0; i < kSliceAnswers; ++i) {
    slices_[i] = &registry.AddCounter("runahead_handoff_slices_total", "Slices that arrived, by what was answered",
                                      {{"verdict", kAnswerNames[i]}});
  }
  for (int i = 0; i < kHandoffKinds; ++i) {
    const MetricLabels labels = {{"kind", kHandoffKindNames[i]}};
    expected_bytes_[i] = &registry.AddCounter("runahead_handoff_expected_bytes_total",
                                              "Bytes that prefill workers are to hand off, as leases expect", labels);
    received_bytes_[i] = &registry.AddCounter("runahead_handoff_received_bytes_total",
                                              "Bytes that came for leases, each row once", labels);
  }
  for (int i = 0; i < kLinkBlocks; ++i) {
    to_device_[i] = &LinkGauge(registry, "to_device", kLinkBlockBytes[i]);
    to_host_[i] = &LinkGauge(registry, "to_host", kLinkBlockBytes[i]);
  }
  for (int i = 0; i < kLaneBounds; ++i) {
    bound_steps_[i] = &registry.AddCounter("runahead_kvpr_bound_steps_total", "Steps, by what bounds them as predicted",
                                           {{"by", std::string(LaneBoundName(static_cast<LaneBound>(i)))}});
  }
  for (int i = 0; i < kSplitRests; ++i) {
    rest_steps_[i] =
        &registry.AddCounter("runahead_kvpr_rest_steps_total", "Steps, by why they were not the solver's split",
                             {{"reason", std::string(SplitRestName(static_cast<SplitRest>(i)))}});
  }
  for (int i = 0; i < kKvLanes; ++i) {
    const MetricLabels labels = {{"lane", kLaneNames[i]}};
    lanes_[i] = {
        &registry.AddCounter("runahead_kvpr_lane_tokens_total", "Positions that steps had in a lane, each layer",
                             labels),
        &registry.AddCounter("runahead_kvpr_lane_bytes_total", "Bytes that lanes took from host memory", labels),
        &registry.AddCounter("runahead_kvpr_lane_seconds_total", "Seconds for which a lane was busy", labels)};
  }
}

void DecodeMetrics::ObserveStep(int batch_size, absl::Duration took) {
  step_.Observe(absl::ToDoubleSeconds(took));
  batch_size_.Observe(batch_size);
}

void DecodeMetrics::ObserveKvpr(const KvprObservation& step) {
  kvpr_split_.Observe(step.split_tokens);
  kvpr_recompute_.Observe(step.recompute_s);
  kvpr_transfer_.Observe(step.transfer_s);
  kvpr_overlap_.Observe(step.overlap_ratio);
  if (step.link_bytes_per_s > 0) link_bandwidth_.Set(step.link_bytes_per_s);
  predicted_seconds_.Increment(step.predicted_s);
  measured_seconds_.Increment(step.measured_s);
  bound_steps_[static_cast<size_t>(step.bound)]->Increment();
  rest_steps_[static_cast<size_t>(step.rest)]->Increment();
  for (int i = 0; i < kKvLanes; ++i) {
    lanes_[i].tokens->Increment(static_cast<double>(step.lanes[i].tokens));
    lanes_[i].bytes->Increment(static_cast<double>(step.lanes[i].bytes));
    lanes_[i].seconds->Increment(step.lanes[i].seconds);
  }
}

void DecodeMetrics::SetLanes(const LaneSpeeds& lanes) {
  speeds_.project.Set(lanes.project_s);
  speeds_.recompute.Set(lanes.recompute_s);
  speeds_.attend.Set(lanes.attend_s);
  speeds_.signal.Set(lanes.signal_s);
  speeds_.host.Set(lanes.host_bytes_per_s);
  speeds_.host_shared.Set(lanes.host_shared_bytes_per_s);
}

void DecodeMetrics::SetLinkBandwidth(double bytes_per_s) {
  link_bandwidth_.Set(bytes_per_s);
}

void DecodeMetrics::SetLinkRate(int64_t block_bytes, double to_device, double to_host) {
  const auto* const block = std::find(std::begin(kLinkBlockBytes), std::end(kLinkBlockBytes), block_bytes);
  RUNAHEAD_CHECK(block != std::end(kLinkBlockBytes));
  to_device_[block - kLinkBlockBytes]->Set(to_device);
  to_host_[block - kLinkBlockBytes]->Set(to_host);
}

void DecodeMetrics::SetLinkLatency(double seconds) {
  link_latency_.Set(seconds);
}

void DecodeMetrics::SetKvBytes(KvTier tier, int64_t bytes) {
  kv_bytes_[static_cast<int>(tier)]->Set(static_cast<double>(bytes));
}

void DecodeMetrics::SetKvPromisedBytes(KvTier tier, int64_t bytes) {
  kv_promised_bytes_[static_cast<int>(tier)]->Set(static_cast<double>(bytes));
}

void DecodeMetrics::SetKvKeptBytes(KvTier tier, int64_t bytes) {
  kv_kept_bytes_[static_cast<int>(tier)]->Set(static_cast<double>(bytes));
}

void DecodeMetrics::CountKvEvicted(KvTier tier, int64_t bytes) {
  kv_kept_evicted_bytes_[static_cast<int>(tier)]->Increment(static_cast<double>(bytes));
}

void DecodeMetrics::SetKvCapacityBytes(KvTier tier, int64_t bytes) {
  kv_capacity_bytes_[static_cast<int>(tier)]->Set(static_cast<double>(bytes));
}

void DecodeMetrics::SetLeases(int64_t leases) {
  leases_.Set(static_cast<double>(leases));
}

void DecodeMetrics::CountLeasesExpired(int64_t leases) {
  leases_expired_.Increment(static_cast<double>(leases));
}

void DecodeMetrics::CountChecksumFailure() {
  checksum_failures_.Increment();
}

void DecodeMetrics::CountPromptRows(int64_t rows) {
  prompt_rows_.Increment(static_cast<double>(rows));
}

void DecodeMetrics::CountRebuilt(int64_t tokens) {
  rebuilt_.Increment(static_cast<double>(tokens));
}

void DecodeMetrics::CountLateMasks(int64_t sequences) {
  late_masks_.Increment(static_cast<double>(sequences));
}

void DecodeMetrics::SetParked(int64_t sequences) {
  parked_.Set(static_cast<double>(sequences));
}

void DecodeMetrics::CountParking() {
  parkings_.Increment();
}

void DecodeMetrics::CountSaturated(int64_t values) {
  saturated_.Increment(static_cast<double>(values));
}

void DecodeMetrics::CountSlice(SliceAnswer answer) {
  slices_[static_cast<int>(answer)]->Increment();
}

void DecodeMetrics::CountHandoff(HandoffKind kind, int64_t expected_bytes, int64_t received_bytes) {
  expected_bytes_[static_cast<int>(kind)]->Increment(static_cast<double>(expected_bytes));
  received_bytes_[static_cast<int>(kind)]->Increment(static_cast<double>(received_bytes));
}

}  // namespace runahead
