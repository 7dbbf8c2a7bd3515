#include "server/router/request_memory_metrics.h"

namespace runahead {
namespace {

constexpr char kArrivingHelp[] = "Messages of requests that are not here yet: that are read, or wait for that";
constexpr char kBytesHelp[] =
    "Memory that requests take: messages on their way, counted as the longest, and requests that wait or run";
constexpr char kRefusedHelp[] = "Requests refused before they were looked at";

Gauge& Arriving(MetricRegistry& registry, const char* state) {
  return registry.AddGauge("runahead_messages_arriving", kArrivingHelp, {{"state", state}});
}

Gauge& Bytes(MetricRegistry& registry, const char* kind) {
  return registry.AddGauge("runahead_request_memory_bytes", kBytesHelp, {{"kind", kind}});
}

Gauge& Limit(MetricRegistry& registry, const char* kind) {
  return registry.AddGauge("runahead_request_memory_limit_bytes", "What they may take", {{"kind", kind}});
}

Counter& Refused(MetricRegistry& registry, const char* reason) {
  return registry.AddCounter("runahead_messages_refused_total", kRefusedHelp, {{"reason", reason}});
}

}  // namespace

RequestMemoryMetrics::RequestMemoryMetrics(MetricRegistry& registry, int64_t arriving_limit, int64_t held_limit)
    : reading(Arriving(registry, "reading")),
      waiting(Arriving(registry, "waiting")),
      arriving_bytes(Bytes(registry, "arriving")),
      held_bytes(Bytes(registry, "held")),
      slow(Refused(registry, "slow")),
      full(Refused(registry, "full")),
      no_memory(Refused(registry, "memory")) {
  Limit(registry, "arriving").Set(static_cast<double>(arriving_limit));
  Limit(registry, "held").Set(static_cast<double>(held_limit));
}

}  // namespace runahead
