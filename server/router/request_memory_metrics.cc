#include "server/router/request_memory_metrics.h"

namespace runahead {
namespace {

constexpr char kArrivingHelp[] = "Messages of requests that are not here yet: that are read, or wait for that";
constexpr char kBytesHelp[] =
    "Memory that requests take: messages on their way, counted as the longest, requests that wait or run, and answers "
    "that clients have not taken";
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

Counter& CutOff(MetricRegistry& registry, const char* reason) {
  return registry.AddCounter("runahead_answers_cut_off_total",
                             "Whole answers that clients did not get, for they did not take them",
                             {{"reason", reason}});
}

}  // namespace

RequestMemoryMetrics::RequestMemoryMetrics(MetricRegistry& registry, const RequestMemoryLimits& limits)
    : reading(Arriving(registry, "reading")),
      waiting(Arriving(registry, "waiting")),
      arriving_bytes(Bytes(registry, "arriving")),
      held_bytes(Bytes(registry, "held")),
      answer_bytes(Bytes(registry, "answers")),
      slow(Refused(registry, "slow")),
      full(Refused(registry, "full")),
      too_long(Refused(registry, "long")),
      no_memory(Refused(registry, "memory")),
      answers_slow(CutOff(registry, "slow")),
      answers_full(CutOff(registry, "full")) {
  Limit(registry, "arriving").Set(static_cast<double>(limits.arriving));
  Limit(registry, "held").Set(static_cast<double>(limits.held));
  Limit(registry, "answers").Set(static_cast<double>(limits.answers));
}

}  // namespace runahead
