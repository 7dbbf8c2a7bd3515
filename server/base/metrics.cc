#include "server/base/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <sstream>

#include "server/base/limits.h"
#include "server/base/process_collector.h"
#include "server/base/version.h"

namespace runahead {

MetricRegistry::MetricRegistry(absl::string_view device)
    : registry_(std::make_unique<prometheus::Registry>()), process_(MakeProcessCollector()) {
  AddGauge("runahead_build_info", "1, with what runs here in its labels",
           {{"version", std::string(Version())}, {"device", std::string(device)}})
      .Set(1);
}

MetricRegistry::~MetricRegistry() = default;

Counter& MetricRegistry::AddCounter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
}

Gauge& MetricRegistry::AddGauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels);
}

Histogram& MetricRegistry::AddHistogram(const std::string& name, const std::string& help,
                                        const std::vector<double>& buckets, const MetricLabels& labels) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_).Add(labels, buckets);
}

std::string MetricRegistry::Bounded(const std::string& label, const std::string& value, size_t most) {
  MutexLock lock(mu_);
  std::set<std::string>& values = bounded_[label];
  if (values.size() < most) values.insert(value);
  return values.contains(value) ? value : "other";
}

std::string MetricRegistry::Serialize() const {
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  for (prometheus::MetricFamily& family : process_->Collect()) families.push_back(std::move(family));
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

std::vector<double> TtftBuckets() {
  std::vector<double> bounds = {.001, .0025, .005, .01, .025, .05, .1,  .25, .5,  1,
                                2.5,  5,     10,   20,  30,   60,  120, 300, 600, 1800};
  bounds.push_back(absl::ToDoubleSeconds(kLongestLatency));
  return bounds;
}

std::vector<double> TokenBuckets() {
  std::vector<double> bounds = {.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600};
  bounds.push_back(absl::ToDoubleSeconds(kLongestLatency));
  return bounds;
}

std::vector<double> PowerOfTwoBuckets(int64_t most) {
  std::vector<double> buckets = {1};
  while (buckets.back() < static_cast<double>(most)) buckets.push_back(2 * buckets.back());
  return buckets;
}

}  // namespace runahead
