// How much longer single transfers take on a link that others use too. Pure functions.
#pragma once

#include <cstdint>

#include "scheduler/partition/cost_model.h"

namespace runahead {

// Tells apart the directions of all links. `upstream`: towards the head.
inline uint64_t DirectionNumber(int link, bool upstream) {
  return 2 * static_cast<uint64_t>(link) + (upstream ? 1 : 0);
}

// At least 1. A draw of the slowdown's seed, the direction, the layer and the part that is carried.
double SlowdownOf(const LinkSlowdown& slowdown, uint64_t direction, int64_t layer, int part);

}  // namespace runahead
