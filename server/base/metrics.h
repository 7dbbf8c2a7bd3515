// The metrics of a process. What a process counts is declared at start in one of *_metrics.h, with all label values, so
// that no query is ever empty; names, types and labels are a contract (docs/metrics.md). Of chains wider than two
// workers only those that there are have series: HistogramsOnUse.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace prometheus {
class Registry;
class Collectable;
}  // namespace prometheus

namespace runahead {

using Counter = prometheus::Counter;
using Gauge = prometheus::Gauge;
using Histogram = prometheus::Histogram;
using MetricLabels = std::map<std::string, std::string>;

// Thread-safe. The metrics it returns are thread-safe, live as long as it does, and cost an atomic (counter, gauge) or
// a short lock (histogram) to change.
class MetricRegistry {
 public:
  // Every registry has the process metrics (CPU seconds, resident memory, open files, start time) and
  // runahead_build_info{version,device}. `device` is what computes here: "cpu", "cuda", or "none" in a router.
  explicit MetricRegistry(absl::string_view device);
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // Asking again with the same name and labels gives the same metric; all of a name have the same help and label names.
  Counter& AddCounter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Gauge& AddGauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Histogram& AddHistogram(const std::string& name, const std::string& help, const std::vector<double>& buckets,
                          const MetricLabels& labels = {});

  // `value` for `label`, while that has taken on `most` values or fewer here, else "other": for values that come from
  // outside, so that series stay few.
  std::string Bounded(const std::string& label, const std::string& value, size_t most) RUNAHEAD_EXCLUDES(mu_);

  // All of it in Prometheus' text format 0.0.4.
  std::string Serialize() const;

 private:
  std::unique_ptr<prometheus::Registry> registry_;
  std::unique_ptr<prometheus::Collectable> process_;
  Mutex mu_;
  std::map<std::string, std::set<std::string>> bounded_ RUNAHEAD_GUARDED_BY(mu_);  // values by label
};

// Upper bounds in seconds, up to kLongestLatency (limits.h).
std::vector<double> TtftBuckets();   // from .001: requests, their time to first token and its stages
std::vector<double> TokenBuckets();  // from .0005: one token, one layer's transfer
// 1, 2, 4, ... up to the first that is no less than `most`.
std::vector<double> PowerOfTwoBuckets(int64_t most);

inline constexpr int kMaxChainWidth = 16;   // wider chains count as 16
inline constexpr int kUsualChainWidth = 2;  // chains of up to so many workers have series from the start

// Histograms of one name that differ in a label for the chain: each appears when it is first asked for. For values that
// most processes never see, such as chains of 13 workers. Thread-safe.
class HistogramsOnUse {
 public:
  // `add` makes one, for an index in [0, kMaxChainWidth]; asked twice, it gives the same.
  template <typename Add>
  Histogram& At(int index, const Add& add) {
    Histogram* histogram = histograms_[index].load(std::memory_order_acquire);
    if (histogram == nullptr) {
      histogram = &add(index);
      histograms_[index].store(histogram, std::memory_order_release);
    }
    return *histogram;
  }

 private:
  std::array<std::atomic<Histogram*>, kMaxChainWidth + 1> histograms_ = {};
};

}  // namespace runahead
