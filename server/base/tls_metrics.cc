#include "server/base/tls_metrics.h"

namespace runahead {
namespace {

constexpr char kReloads[] = "runahead_tls_reloads_total";
constexpr char kReloadsHelp[] = "Changes of a certificate's files that the process noticed";

}  // namespace

TlsMetrics::TlsMetrics(MetricRegistry& registry, const std::string& prefix)
    : expiry(registry.AddGauge("runahead_tls_certificate_expiry_timestamp_seconds",
                               "When the certificate in use runs out, in seconds since 1970; 0 where there is none",
                               {{"certificate", prefix}})),
      reloaded(registry.AddCounter(kReloads, kReloadsHelp, {{"certificate", prefix}, {"result", "ok"}})),
      failed(registry.AddCounter(kReloads, kReloadsHelp, {{"certificate", prefix}, {"result", "error"}})) {}

}  // namespace runahead
