// What a router counts of the memory that requests take.
#pragma once

#include <cstdint>

#include "server/base/metrics.h"

namespace runahead {

// Thread-safe. `registry` outlives it. The limits are in bytes, and stay.
struct RequestMemoryMetrics {
  RequestMemoryMetrics(MetricRegistry& registry, int64_t arriving_limit, int64_t held_limit);

  Gauge& reading;  // messages on their way
  Gauge& waiting;
  Gauge& arriving_bytes;
  Gauge& held_bytes;
  Counter& slow;  // refused
  Counter& full;
  Counter& no_memory;
};

}  // namespace runahead
