// What a decode worker measures of its lanes (docs/kvpr.md), and who is told: at start, and again while it has nothing
// to do.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/device.h"
#include "server/base/clock.h"
#include "worker/decode/kvpr/profile.h"
#include "worker/decode/kvpr/split_source.h"
#include "worker/metrics/decode_metrics.h"
#include "worker/model/model.h"

namespace runahead {

LaneSpeeds SpeedsOf(const LaneCosts& costs);

// Used by one thread. All references outlive it.
class LaneProfiler {
 public:
  // How old what was measured is at least when it is measured again.
  static constexpr absl::Duration kAgain = absl::Minutes(1);
  // What the host lane computes on; null: there is none.
  struct Host {
    Device* device = nullptr;
    double emulated_gbps = 0;  // HostAttention
  };
  LaneProfiler(const Model& model, Device& device, const Host& host, DecodeMetrics& metrics, Clock& clock)
      : model_(model), device_(device), host_(host), metrics_(metrics), clock_(clock) {}

  // Logs what it finds.
  absl::StatusOr<LaneProfile> Measure(const LaneProfileOptions& options);
  // At most once in kAgain: what steps do not measure where they do not use it, the link by blocks and the host lane. A
  // device without memory for it leaves things as they are.
  void MeasureAgain(SplitSource& split);

 private:
  absl::Status MeasureHost(int runs);
  void Show();

  const Model& model_;
  Device& device_;
  const Host host_;
  DecodeMetrics& metrics_;
  Clock& clock_;
  LaneProfile profile_;
  absl::Time measured_at_;
};

}  // namespace runahead
