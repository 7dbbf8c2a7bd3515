// What a router counts of the traces that go to a collector.
#pragma once

#include "server/base/metrics.h"

namespace runahead {

// Thread-safe. `registry` outlives it.
struct OtlpMetrics {
  explicit OtlpMetrics(MetricRegistry& registry);

  Counter& sent;
  Counter& dropped;  // never tried, or not until the router ended: too many waited
  Counter& failed;   // the collector refused them
};

}  // namespace runahead
