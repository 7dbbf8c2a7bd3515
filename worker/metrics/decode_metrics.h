// What a decode worker counts. Names and labels: docs/metrics.md.
#pragma once

#include <array>

#include "absl/time/time.h"
#include "scheduler/recompute/split_controller.h"
#include "server/base/metrics.h"
#include "worker/metrics/handoff_kind.h"

namespace runahead {

enum class KvTier { kDevice, kHost };
inline constexpr int kKvTiers = 2;

// What a slice that arrived was answered.
enum class SliceAnswer { kAccepted, kCorrupt, kNoLease, kBadRange };
inline constexpr int kSliceAnswers = 4;

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
  double link_bytes_per_s = 0;  // while the link was busy; 0: nothing came over it
  double overlap_ratio = 0;     // docs/metrics.md
  double predicted_s = 0, measured_s = 0;
  LaneBound bound = LaneBound::kLink;  // as predicted
  SplitRest rest = SplitRest::kNone;
};

// How fast the lanes of a KVPR step are, as measured at start and estimated by each step since. 0: not there.
struct LaneSpeeds {
  double project_s = 0;                // a layer's
  double recompute_s = 0;              // of a position in a layer
  double attend_s = 0;                 // of a position in a layer, on the device
  double signal_s = 0;                 // a layer's
  double host_bytes_per_s = 0;         // KV that the host lane attends over, alone
  double host_shared_bytes_per_s = 0;  // of the host lane and copies together
};

// Sizes of the copies of which a link's rate is measured.
inline constexpr int64_t kLinkBlockBytes[] = {64 << 10, 1 << 20, 16 << 20};
inline constexpr int kLinkBlocks = 3;

// Thread-safe; lives no longer than the registry.
class DecodeMetrics {
 public:
  explicit DecodeMetrics(MetricRegistry& registry);

  void ObserveStep(int batch_size, absl::Duration took);
  void CountPromptRows(int64_t rows);
  void CountRebuilt(int64_t tokens);  // computed again, since their sequence was parked
  void CountLateMasks(int64_t sequences);
  void SetParked(int64_t sequences);
  void CountParking();  // of a sequence

  void ObserveKvpr(const KvprObservation& step);
  void SetLanes(const LaneSpeeds& lanes);
  // Of copies to the device, as measured while nothing else runs: until the next step.
  void SetLinkBandwidth(double bytes_per_s);
  // Of copies of one of kLinkBlockBytes, one at a time, in bytes a second.
  void SetLinkRate(int64_t block_bytes, double to_device, double to_host);
  void SetLinkLatency(double seconds);  // of a copy of a few bytes

  void SetKvBytes(KvTier tier, int64_t bytes);          // in use
  void SetKvPromisedBytes(KvTier tier, int64_t bytes);  // in use, or promised to leases that grow
  void SetKvKeptBytes(KvTier tier, int64_t bytes);      // of sequences that ended; not in use
  void CountKvEvicted(KvTier tier, int64_t bytes);      // kept ones that were needed
  void SetKvCapacityBytes(KvTier tier, int64_t bytes);  // in all
  void SetLeases(int64_t leases);

  void CountLeasesExpired(int64_t leases);
  void CountChecksumFailure();  // of a slice that arrived
  // Values of new rows that lie outside the range by which a static window quantises.
  void CountSaturated(int64_t values);
  void CountSlice(SliceAnswer answer);
  // Bytes that leases were reserved for, and that came for them.
  void CountHandoff(HandoffKind kind, int64_t expected_bytes, int64_t received_bytes);

 private:
  Histogram& step_;
  Histogram& batch_size_;
  std::array<Gauge*, kKvTiers> kv_bytes_;
  std::array<Gauge*, kKvTiers> kv_promised_bytes_;
  std::array<Gauge*, kKvTiers> kv_kept_bytes_;
  std::array<Counter*, kKvTiers> kv_kept_evicted_bytes_;
  std::array<Gauge*, kKvTiers> kv_capacity_bytes_;
  Histogram& kvpr_split_;
  Histogram& kvpr_recompute_;
  Histogram& kvpr_transfer_;
  Histogram& kvpr_overlap_;
  Gauge& link_bandwidth_;
  std::array<Gauge*, kLinkBlocks> to_device_, to_host_;
  Gauge& link_latency_;
  struct LaneGauges {
    Gauge &project, &recompute, &attend, &signal, &host, &host_shared;
  };
  const LaneGauges speeds_;
  struct LaneCounters {
    Counter* tokens;
    Counter* bytes;
    Counter* seconds;
  };
  std::array<LaneCounters, kKvLanes> lanes_;
  std::array<Counter*, kLaneBounds> bound_steps_;
  std::array<Counter*, kSplitRests> rest_steps_;
  Counter& predicted_seconds_;
  Counter& measured_seconds_;
  Gauge& leases_;
  Counter& leases_expired_;
  Counter& checksum_failures_;
  Counter& saturated_;
  Counter& prompt_rows_;
  Gauge& parked_;
  Counter& parkings_;
  Counter& rebuilt_;
  Counter& late_masks_;
  std::array<Counter*, kSliceAnswers> slices_;
  std::array<Counter*, kHandoffKinds> expected_bytes_, received_bytes_;
};

}  // namespace runahead
