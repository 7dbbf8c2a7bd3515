// What the gateway counts. Names, types and labels are a contract (docs/metrics.md).
#pragma once

#include <string>

#include "server/base/metrics.h"

namespace runahead {

// Thread-safe. `registry` must outlive it.
class GatewayMetrics {
 public:
  explicit GatewayMetrics(MetricRegistry& registry);

  void Answered(const std::string& route, int status);
  void Ignored(const std::string& member);

  Gauge& in_flight;   // requests
  Counter& streamed;  // events that were sent
  Counter& gone;      // clients that went away before the end of their answers

 private:
  MetricRegistry& registry_;
};

}  // namespace runahead
