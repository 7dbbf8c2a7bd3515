#include "worker/decode/store_report.h"

namespace runahead {

StoreReport::StoreReport(const KvStore& store, DecodeMetrics& metrics) : store_(store), metrics_(metrics) {
  Update();
}

void StoreReport::Update() {
  MutexLock lock(mu_);
  const KvStore::Stats stats = store_.stats();
  const KvTier tier = store_.options().tier == MemoryKind::kDevice ? KvTier::kDevice : KvTier::kHost;
  metrics_.SetKvCapacityBytes(tier, stats.capacity_bytes);
  metrics_.SetKvBytes(tier, stats.used_bytes);
  metrics_.SetKvPromisedBytes(tier, stats.promised_bytes);
  metrics_.SetKvKeptBytes(tier, stats.kept_bytes);
  metrics_.CountKvEvicted(tier, stats.evicted_bytes - counted_.evicted_bytes);
  metrics_.SetLeases(stats.leases);
  metrics_.CountLeasesExpired(stats.expired - counted_.expired);
  const auto count = [&](HandoffKind kind, const KvStore::Stats::Handoff& now, const KvStore::Stats::Handoff& before) {
    metrics_.CountHandoff(kind, now.expected_bytes - before.expected_bytes, now.received_bytes - before.received_bytes);
  };
  count(HandoffKind::kKv, stats.kv, counted_.kv);
  count(HandoffKind::kX, stats.x, counted_.x);
  counted_ = stats;
}

}  // namespace runahead
