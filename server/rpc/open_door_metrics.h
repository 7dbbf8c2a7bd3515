// What a process counts of the methods that anybody may call.
#pragma once

#include <array>

#include "server/base/metrics.h"
#include "server/rpc/arrivals.h"
#include "server/rpc/departures.h"

namespace runahead {

// `registry` outlives this, and this what the watchers are given to.
class OpenDoorMetrics {
 public:
  explicit OpenDoorMetrics(MetricRegistry& registry);

  ArrivalWatcher messages() const;   // counts those that are refused
  DepartureWatcher answers() const;  // counts those that clients do not get

 private:
  std::array<Counter*, 3> refused_;  // by ArrivalWatcher::Refusal
  std::array<Counter*, 2> cut_off_;  // by DepartureWatcher::Cut
};

}  // namespace runahead
