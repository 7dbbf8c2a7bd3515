// What the host lane costs on this machine: measured when a decode worker starts, and again while it has nothing to do.
#pragma once

#include "absl/status/status.h"
#include "kernels/base/device.h"
#include "scheduler/recompute/lane_costs.h"
#include "worker/decode/kvpr/host_attention.h"
#include "worker/model/model.h"

namespace runahead {

inline constexpr int kHostRuns = 8;

// Sets signal_s, host_attend_s and host_bytes_per_s of `costs`, whose link_bytes_per_s and kv_bytes are measured: by
// `attention` over some tens of megabytes of KV, the best of `runs`, and once while copies to `device` run. Blocks for
// some ten milliseconds a run; nothing else runs on either meanwhile. Nothing changes on errors; RESOURCE_EXHAUSTED
// where there is no memory for it.
absl::Status MeasureHostLane(const Model& model, Device& device, const HostAttention& attention, LaneCosts& costs,
                             int runs = kHostRuns);

}  // namespace runahead
