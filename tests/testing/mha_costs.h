// Costs of lanes of a model in which each head has K and V of its own, so that a row of X is half one of KV.
#pragma once

#include "scheduler/recompute/lane_costs.h"

namespace runahead::testing {

// Recomputing all K and V takes rho times as long as moving them.
inline LaneCosts MhaCosts(double rho) {
  LaneCosts costs;
  costs.link_bytes_per_s = 1e9;
  costs.kv_bytes = 4000;
  costs.x_bytes = 2000;
  costs.recompute_s = rho * costs.kv_bytes / costs.link_bytes_per_s;
  return costs;
}

}  // namespace runahead::testing
