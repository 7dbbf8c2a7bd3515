// A decode worker as the split controller meets it: lanes that overlap more or less, noise, delays, and another process
// that takes part of the machine for a while. What a step measures comes from here; the controller knows none of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/recompute/split_controller.h"

namespace runahead::testing {

// From step `from` to before `to` the device and the link take so many times as long.
struct Disturbance {
  int64_t from = 0, to = 0;
  double device = 1, link = 1;
};

struct PlantOptions {
  LaneCosts costs;
  // The layer takes the longer of link and device, and this share of the shorter: at 0 both overlap, at 1 one follows
  // the other.
  double serial = 0;
  // How many times as long copies take while rows are recomputed beside them.
  double contention = 1;
  double noise = 0;   // every time is off by up to this share
  double delays = 0;  // share of the steps that take longer by a delay of up to three layers
  std::vector<Disturbance> disturbances = {};
  int64_t layers = 30;
};

class LanePlant {
 public:
  LanePlant(const PlantOptions& options, int seed) : options_(options), random_(static_cast<uint32_t>(seed)) {}

  struct Step {
    LaneMeasurement measured;
    double layer_s = 0;     // of the plan
    double smallest_s = 0;  // of `smallest`, at the same moment
  };

  // Step number `step` with `rows`, and what it would have been with the rows of the smallest split.
  Step Run(int64_t step, const LaneRows& rows, const LaneRows& smallest) {
    const LaneCosts costs = At(step);
    Step run;
    const double off = Off(), delay = Uniform(0, 1) < options_.delays ? Uniform(0, 3) : 0;
    LaneTimes times;
    const double layer_s = Layer(costs, rows, &times), smallest_s = Layer(costs, smallest, nullptr);
    run.layer_s = layer_s * off + delay * smallest_s;
    run.smallest_s = smallest_s * off + delay * smallest_s;
    const auto on_device = static_cast<double>(rows.recomputed + rows.streamed + rows.resident);
    run.measured = {.link_s = times.link_s * Off() + (Uniform(0, 1) < 0.5 ? delay * smallest_s : 0),
                    .recompute_s = costs.recompute_s * static_cast<double>(rows.computed) * Off() * (1 + delay),
                    .project_s = costs.project_s * Off(),
                    .attend_s = costs.attend_s * on_device * Off(),
                    .layer_s = run.layer_s};
    now_ += absl::Seconds(run.layer_s * static_cast<double>(options_.layers));
    return run;
  }

  // The layer of `rows`, without noise.
  double LayerAt(int64_t step, const LaneRows& rows) const { return Layer(At(step), rows, nullptr); }
  LaneCosts At(int64_t step) const {
    LaneCosts costs = options_.costs;
    for (const Disturbance& one : options_.disturbances) {
      if (step < one.from || step >= one.to) continue;
      costs.recompute_s *= one.device;
      costs.project_s *= one.device;
      costs.attend_s *= one.device;
      costs.link_bytes_per_s /= one.link;
    }
    return costs;
  }
  absl::Time now() const { return now_; }

 private:
  double Layer(const LaneCosts& costs, const LaneRows& rows, LaneTimes* seen) const {
    LaneTimes times = TimesOfLanes(SplitObjective::kStep, costs, rows);
    const double recompute_s = costs.recompute_s * static_cast<double>(rows.computed);
    const double beside = times.link_s > 0 ? std::min(1.0, recompute_s / times.link_s) : 0;
    times.link_s *= 1 + (options_.contention - 1) * beside;
    if (seen != nullptr) *seen = times;
    return std::max(times.link_s, times.device_s) + options_.serial * std::min(times.link_s, times.device_s);
  }
  double Uniform(double least, double most) { return std::uniform_real_distribution<double>(least, most)(random_); }
  double Off() { return 1 + options_.noise * Uniform(-1, 1); }

  const PlantOptions options_;
  std::mt19937 random_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

// MHA of the quick-start model's shape in f32: rows of 4,608 bytes of KV in a layer, X half of that.
inline LaneCosts PlantCosts(double link_gbps) {
  LaneCosts costs;
  costs.link_bytes_per_s = link_gbps * 1e9 / 8;
  costs.kv_bytes = 4608;
  costs.x_bytes = 2304;
  costs.recompute_s = 3.5e-6;
  costs.project_s = 100e-6;
  costs.attend_s = 0.2e-6;
  return costs;
}

// `batch` sequences, each a position longer in each step.
inline std::vector<LaneShape> PlantShapes(int64_t batch, int64_t length, int64_t step) {
  return std::vector<LaneShape>(static_cast<size_t>(batch),
                                LaneShape{.length = length + step, .x_stored = length + step - 1});
}

}  // namespace runahead::testing
