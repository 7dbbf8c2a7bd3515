#include "worker/metrics/decode_metrics.h"

namespace runahead {
namespace {

constexpr const char* kTierNames[kKvTiers] = {"device", "host"};

}  // namespace

DecodeMetrics::DecodeMetrics(MetricRegistry& registry)
    : step_(registry.AddHistogram("runahead_decode_step_seconds", "One step of the whole batch", TokenBuckets())),
      batch_size_(registry.AddHistogram("runahead_decode_batch_size", "Sequences in a step", PowerOfTwoBuckets(256))),
      leases_(registry.AddGauge("runahead_kv_leases", "Leases alive")),
      leases_expired_(registry.AddCounter("runahead_kv_leases_expired_total", "Leases that ran out unreleased")),
      checksum_failures_(
          registry.AddCounter("runahead_handoff_checksum_failures_total", "Slices that arrived corrupt")) {
  for (int i = 0; i < kKvTiers; ++i) {
    const MetricLabels labels = {{"tier", kTierNames[i]}};
    kv_bytes_[i] = &registry.AddGauge("runahead_kv_bytes", "KV cache memory in use", labels);
    kv_capacity_bytes_[i] = &registry.AddGauge("runahead_kv_capacity_bytes", "KV cache memory in all", labels);
  }
}

void DecodeMetrics::ObserveStep(int batch_size, absl::Duration took) {
  step_.Observe(absl::ToDoubleSeconds(took));
  batch_size_.Observe(batch_size);
}

void DecodeMetrics::SetKvBytes(KvTier tier, int64_t bytes) {
  kv_bytes_[static_cast<int>(tier)]->Set(static_cast<double>(bytes));
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

}  // namespace runahead
