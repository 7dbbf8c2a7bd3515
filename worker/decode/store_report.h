// Puts the KV store's state into the decode metrics.
#pragma once

#include <cstdint>

#include "kernels/base/mutex.h"
#include "worker/kv/store.h"
#include "worker/metrics/decode_metrics.h"

namespace runahead {

// Thread-safe. Store and metrics outlive it.
class StoreReport {
 public:
  StoreReport(const KvStore& store, DecodeMetrics& metrics);
  // Brings the gauges up to date, and counts since the last call leases that expired and bytes that were handed off.
  // Cheap: call it whenever leases come or go, and from the reaper's timer.
  void Update() RUNAHEAD_EXCLUDES(mu_);

 private:
  const KvStore& store_;
  DecodeMetrics& metrics_;
  Mutex mu_;
  KvStore::Stats counted_ RUNAHEAD_GUARDED_BY(mu_);  // so far
};

}  // namespace runahead
