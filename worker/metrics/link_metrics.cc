#include "worker/metrics/link_metrics.h"

namespace runahead {

LinkMetrics::Direction LinkMetrics::Add(MetricRegistry& registry, const std::string& peer,
                                        const std::string& direction) {
  const MetricLabels labels = {{"peer", peer}, {"direction", direction}};
  return {registry.AddHistogram("runahead_link_seconds", "One frame between chain neighbours", TokenBuckets(), labels),
          registry.AddCounter("runahead_link_bytes_total", "Bytes between chain neighbours", labels)};
}

LinkMetrics::LinkMetrics(MetricRegistry& registry, const std::string& peer)
    : send_(Add(registry, registry.Bounded("peer", peer, kMeteredPeers), "send")),
      receive_(Add(registry, registry.Bounded("peer", peer, kMeteredPeers), "receive")) {}

void LinkMetrics::ObserveSend(int64_t bytes, absl::Duration took) {
  send_.bytes.Increment(static_cast<double>(bytes));
  send_.seconds.Observe(absl::ToDoubleSeconds(took));
}

void LinkMetrics::ObserveReceive(int64_t bytes, absl::Duration took) {
  receive_.bytes.Increment(static_cast<double>(bytes));
  receive_.seconds.Observe(absl::ToDoubleSeconds(took));
}

}  // namespace runahead
