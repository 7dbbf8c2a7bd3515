// Simulates a prefill whose links share buses: what a transfer takes depends on what else is under way at the time, so
// this goes from event to event, where SimulateChain without buses goes from frame to frame. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "scheduler/partition/cost_model.h"

namespace runahead {

// In place of a part: the known beginning, which comes to the head from outside the line.
inline constexpr int kKnownPart = -1;

// What is to be simulated, as SimulateChain has it.
struct ChainWork {
  // A worker also hears from those behind it, and takes frames of a layer once it has its own K and V (TSP's gather).
  // False: a worker takes them CostModel::receive_ahead_layers ahead (KV-Runahead).
  bool both_directions = false;
  int workers = 1;
  double known_per_s = std::numeric_limits<double>::infinity();  // bytes of the known beginning; on no bus
  std::function<LayerTimes(int64_t layer, int worker)> times;
  // Of the frame of a part, or of kKnownPart, to a neighbour; negative: no such frame.
  std::function<double(int64_t layer, int to, int part)> bytes;
};

struct RunOnBuses {
  double last_layer_s = 0;        // when the last worker has finished its last layer
  std::vector<double> waiting_s;  // [workers]
};

// `model` is checked for so many workers; the work is consistent with it. Costs some layers * workers^3 steps of a few
// nanoseconds. Where no two transfers meet on a bus, it finds what SimulateChain finds without buses.
RunOnBuses SimulateOnBuses(const CostModel& model, const ChainWork& work);

}  // namespace runahead
