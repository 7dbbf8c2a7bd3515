#include "server/rpc/transport_metrics.h"

#include "server/base/metrics_server.h"
#include "server/rpc/health.h"
#include "server/rpc/open_door.h"

namespace runahead {

void CountPortLimits(MetricRegistry& registry, const TransportLimits& limits, int64_t min_arrival_rate) {
  registry.AddGauge("runahead_connection_streams_limit", "Calls that one connection may have open at once")
      .Set(limits.connection_streams);
  registry.AddGauge("runahead_connection_buffers_limit_bytes", "What the buffers of all connections together may take")
      .Set(static_cast<double>(limits.buffers));
  registry.AddGauge("runahead_min_arrival_rate_bytes_per_second", "How fast messages must come, and answers be taken")
      .Set(static_cast<double>(min_arrival_rate));
  ShowFixedLimit(registry, "open_message_bytes", static_cast<double>(kShortMessageBytes));
  ShowFixedLimit(registry, "open_bytes", static_cast<double>(kOpenDoorBytes));
  ShowFixedLimit(registry, "open_seconds", absl::ToDoubleSeconds(kOpenDoorPatience));
  ShowFixedLimit(registry, "watch_streams", static_cast<double>(HealthService::kMostWatches));
  ShowFixedLimit(registry, "metrics_request_seconds", absl::ToDoubleSeconds(kHttpRequestTime));
  ShowFixedLimit(registry, "metrics_answer_seconds", absl::ToDoubleSeconds(kHttpAnswerTime));
}

void ShowFixedLimit(MetricRegistry& registry, const std::string& limit, double value) {
  registry.AddGauge("runahead_fixed_limit", "Limits of ports that no option sets", {{"limit", limit}}).Set(value);
}

}  // namespace runahead
