// What a router counts of the memory that requests take.
#pragma once

#include <cstdint>

#include "server/base/metrics.h"

namespace runahead {

// In bytes.
struct RequestMemoryLimits {
  int64_t arriving = 0;
  int64_t held = 0;
  int64_t answers = 0;
};

// Thread-safe. `registry` outlives it. The limits stay.
struct RequestMemoryMetrics {
  RequestMemoryMetrics(MetricRegistry& registry, const RequestMemoryLimits& limits);

  Gauge& reading;  // messages on their way
  Gauge& waiting;
  Gauge& arriving_bytes;
  Gauge& held_bytes;
  Gauge& answer_bytes;
  Counter& slow;  // refused
  Counter& full;
  Counter& too_long;
  Counter& no_memory;
  Counter& answers_slow;  // not sent, or cut off
  Counter& answers_full;
};

}  // namespace runahead
