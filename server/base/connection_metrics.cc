#include "server/base/connection_metrics.h"

namespace runahead {

const char* ConnectionRefusalName(ConnectionRefusal refusal) {
  switch (refusal) {
    case ConnectionRefusal::kLimit:
      return "limit";
    case ConnectionRefusal::kAddress:
      return "address";
    case ConnectionRefusal::kDescriptors:
      return "descriptors";
  }
  return "";
}

ConnectionMetrics::ConnectionMetrics(MetricRegistry& registry, const std::string& port)
    : open(registry.AddGauge("runahead_connections", "Open connections of clients", {{"port", port}})),
      limit(registry.AddGauge("runahead_connections_limit", "Connections of clients that may be open",
                              {{"port", port}})) {
  for (size_t i = 0; i < kConnectionRefusals; ++i) {
    refused_[i] = &registry.AddCounter(
        "runahead_connections_refused_total", "Connections that were closed because there were too many",
        {{"port", port}, {"reason", ConnectionRefusalName(static_cast<ConnectionRefusal>(i))}});
  }
}

}  // namespace runahead
