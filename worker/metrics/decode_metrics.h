// What a decode worker counts. Names and labels: docs/metrics.md.
#pragma once

#include <array>

#include "absl/time/time.h"
#include "server/base/metrics.h"

namespace runahead {

enum class KvTier { kDevice, kHost };
inline constexpr int kKvTiers = 2;

// Where a position's K and V come from in a step (docs/kvpr.md).
enum class KvLane { kRecomputed, kStreamed, kHost, kResident };
inline constexpr int kKvLanes = 4;

// Of one KVPR step, over all its layers; seconds are those for which something was busy.
struct KvprObservation {
  struct Lane {
    int64_t tokens = 0, bytes = 0;  // bytes: from host memory
    double seconds = 0;
  };
  std::array<Lane, kKvLanes> lanes;
  double split_tokens = 0;  // l, the mean over the sequences
  double recompute_s = 0, transfer_s = 0;
  double overlap_ratio = 0;  // docs/metrics.md
  double link_bytes_per_s = 0;
};

// Thread-safe; lives no longer than the registry.
class DecodeMetrics {
 public:
  explicit DecodeMetrics(MetricRegistry& registry);

  void ObserveStep(int batch_size, absl::Duration took);

  void ObserveKvpr(const KvprObservation& step);
  // As measured at start and while it runs.
  void SetLinkBandwidth(double bytes_per_second);

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
  Histogram& kvpr_split_;
  Histogram& kvpr_recompute_;
  Histogram& kvpr_transfer_;
  Histogram& kvpr_overlap_;
  Gauge& link_bandwidth_;
  struct LaneCounters {
    Counter* tokens;
    Counter* bytes;
    Counter* seconds;
  };
  std::array<LaneCounters, kKvLanes> lanes_;
  Gauge& leases_;
  Counter& leases_expired_;
  Counter& checksum_failures_;
};

}  // namespace runahead
