// What a process tells of its certificates.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "server/base/metrics.h"

namespace runahead {

struct TlsMetrics {
  // Metrics of the certificate whose options begin with `prefix`: "tls" or "cluster_tls". `registry` must outlive this.
  TlsMetrics(MetricRegistry& registry, const std::string& prefix);

  void SetExpiry(absl::Time expires) const { expiry.Set(static_cast<double>(absl::ToUnixSeconds(expires))); }

  Gauge& expiry;  // seconds since 1970; 0: there is no certificate
  // Changes of the files that were noticed: taken over, or not, for they are no good.
  Counter& reloaded;
  Counter& failed;
};

}  // namespace runahead
