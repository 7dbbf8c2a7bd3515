#include "server/router/key_metrics.h"

#include "server/router/api_keys.h"

namespace runahead {
namespace {

constexpr const char* kLimitNames[kKeyLimits] = {"requests",   "tokens",   "concurrent",
                                                 "max_tokens", "priority", "tenant"};
constexpr const char* kFaultNames[kKeyFaults] = {"missing", "unknown", "expired"};

Counter& Reloads(MetricRegistry& registry, const char* result) {
  return registry.AddCounter("runahead_api_key_reloads_total", "Changes of the file of API keys", {{"result", result}});
}

}  // namespace

KeyMetrics::KeyMetrics(MetricRegistry& registry)
    : registry_(registry), reloads_ok_(Reloads(registry, "ok")), reloads_error_(Reloads(registry, "error")) {
  for (int i = 0; i < kKeyFaults; ++i) {
    faults_[i] = &registry.AddCounter("runahead_unauthenticated_calls_total", "Calls without an API key that is good",
                                      {{"reason", kFaultNames[i]}});
  }
}

KeyMetrics::Series KeyMetrics::For(const std::string& name) {
  const std::string key = registry_.Bounded("key", name, kMaxApiKeys);
  const auto tokens = [&](const char* kind) {
    return &registry_.AddCounter("runahead_key_tokens_total", "Tokens of requests that have ended, by API key",
                                 {{"key", key}, {"kind", kind}});
  };
  Series series{};
  series.requests = &registry_.AddCounter("runahead_key_requests_total", "Calls let in, by API key", {{"key", key}});
  series.prompt_tokens = tokens("prompt");
  series.output_tokens = tokens("output");
  for (int i = 0; i < kKeyLimits; ++i) {
    series.refusals[i] = &registry_.AddCounter("runahead_key_refusals_total", "Calls refused for a limit of their key",
                                               {{"key", key}, {"limit", kLimitNames[i]}});
  }
  return series;
}

}  // namespace runahead
