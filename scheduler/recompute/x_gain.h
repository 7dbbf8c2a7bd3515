// What X beside KV gains a decode worker. Pure.
#pragma once

#include <cstdint>

#include "scheduler/recompute/lane_costs.h"

namespace runahead {

// For less X is worth neither the host memory that it takes nor its way from prefill workers.
inline constexpr double kLeastGainOfX = 1.1;

// How many times as fast as without X a step is that recomputes from it: of `sequences` sequences of `tokens` positions
// each, both at least 1, with nothing resident and so without a host lane: that needs a window of each sequence, for
// which a first step has none, and the device may have no room. `costs` passed CheckLaneCosts. Takes two SolveLanes.
double GainOfX(const LaneCosts& costs, int64_t sequences, int64_t tokens);

// By how many seconds a layer takes longer where one of the step's sequences has no X: of `sequences` sequences as
// above, of which all others have X of all positions, and recompute more of them where that helps. Not below 0. `costs`
// passed CheckLaneCosts. Takes two SolveLanes.
double LostWithoutX(const LaneCosts& costs, int64_t sequences, int64_t tokens);

}  // namespace runahead
