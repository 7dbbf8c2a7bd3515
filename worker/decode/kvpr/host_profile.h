// What the host lane costs on this machine: measured when a decode worker starts, and again while it has nothing to do.
#pragma once

#include "absl/status/status.h"
#include "kernels/base/device.h"
#include "scheduler/recompute/lane_costs.h"
#include "worker/decode/kvpr/host_attention.h"
#include "worker/model/model.h"

namespace runahead {

inline constexpr int kHostRuns = 8;

// A time in which the host lane attended, and copies ran beside it.
struct SharedRun {
  double attended_bytes = 0, copied_bytes = 0;
  double seconds = 0;  // above 0
};
// LaneCosts::host_bytes_per_s by such a time and by what each of the two reaches alone, in bytes a second: what both
// reached together; infinity where that is about the sum, for then they do not disturb each other.
double SharedBytesPerSecond(const SharedRun& together, double attend_bytes_per_s, double link_bytes_per_s);

// Sets signal_s, host_attend_s and host_bytes_per_s of `costs`, whose link_bytes_per_s and kv_bytes are measured: by
// `attention` over some tens of megabytes of KV, the best of `runs`, and once while copies to `device` run. Blocks for
// some ten milliseconds a run; nothing else runs on either meanwhile. Nothing changes on errors; RESOURCE_EXHAUSTED
// where there is no memory for it.
absl::Status MeasureHostLane(const Model& model, Device& device, const HostAttention& attention, LaneCosts& costs,
                             int runs = kHostRuns);

}  // namespace runahead
