// What a decode worker counts. Names and labels: docs/metrics.md.
#pragma once

#include <array>

#include "absl/time/time.h"
#include "server/base/metrics.h"

namespace runahead {

enum class KvTier { kDevice, kHost };
inline constexpr int kKvTiers = 2;

// Thread-safe; lives no longer than the registry.
class DecodeMetrics {
 public:
  explicit DecodeMetrics(MetricRegistry& registry);

  void ObserveStep(int batch_size, absl::Duration took);

  void SetKvBytes(KvTier tier, int64_t bytes);          // in use
  void SetKvCapacityBytes(KvTier tier, int64_t bytes);  // in all
  void SetLeases(int64_t leases);

  void CountLeasesExpired(int64_t leases);
  void CountChecksumFailure();  // of a slice that arrived

 private:
  Histogram& step_;
  Histogram& batch_size_;
  std::array<Gauge*, kKvTiers> kv_bytes_;
  std::array<Gauge*, kKvTiers> kv_capacity_bytes_;
  Gauge& leases_;
  Counter& leases_expired_;
  Counter& checksum_failures_;
};

}  // namespace runahead
