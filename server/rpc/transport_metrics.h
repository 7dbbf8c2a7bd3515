// The limits of a process's ports, as metrics.
#pragma once

#include <cstdint>
#include <string>

#include "server/base/metrics.h"
#include "server/rpc/transport_limits.h"

namespace runahead {

// Shows those of every process, that options set and that are fixed, for as long as `registry` lives. Once for a
// registry. `min_arrival_rate`: ProcessOptions.
void CountPortLimits(MetricRegistry& registry, const TransportLimits& limits, int64_t min_arrival_rate);

// One that no option sets. `limit` says its unit.
void ShowFixedLimit(MetricRegistry& registry, const std::string& limit, double value);

}  // namespace runahead
