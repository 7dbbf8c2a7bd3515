#include "server/gateway/gateway_metrics.h"

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

constexpr char kRequests[] = "runahead_gateway_requests_total";
constexpr char kRequestsHelp[] = "Requests over HTTP by route and by the status of their answers";
constexpr char kIgnored[] = "runahead_gateway_ignored_members_total";
constexpr char kIgnoredHelp[] = "Members of requests that the gateway does not know, and did not look at";
constexpr size_t kMostMembers = 64;  // that have a series of their own

}  // namespace

GatewayMetrics::GatewayMetrics(MetricRegistry& registry)
    : in_flight(registry.AddGauge("runahead_gateway_requests_in_flight", "Requests over HTTP that are being answered")),
      streamed(registry.AddCounter("runahead_gateway_events_total", "Server-sent events that went to clients")),
      gone(registry.AddCounter("runahead_gateway_clients_gone_total",
                               "Clients that went away before the end of their answers")),
      registry_(registry) {
  for (const char* const route : {"/v1/chat/completions", "/v1/completions", "/v1/models"}) {
    registry.AddCounter(kRequests, kRequestsHelp, {{"route", route}, {"code", "200"}});
  }
  registry.AddCounter(kIgnored, kIgnoredHelp, {{"member", "other"}});
}

void GatewayMetrics::Answered(const std::string& route, int status) {
  registry_.AddCounter(kRequests, kRequestsHelp, {{"route", route}, {"code", absl::StrCat(status)}}).Increment();
}

void GatewayMetrics::Ignored(const std::string& member) {
  registry_.AddCounter(kIgnored, kIgnoredHelp, {{"member", registry_.Bounded("member", member, kMostMembers)}})
      .Increment();
}

}  // namespace runahead
