// What the lanes of a KVPR step cost on this device, for a model's real shapes: measured when a decode worker starts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/device.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/row_form.h"
#include "scheduler/recompute/lane_costs.h"
#include "worker/model/model.h"

namespace runahead {

// Bytes a second of copies of one size, one at a time.
struct LinkRate {
  int64_t block_bytes = 0;
  double to_device = 0, to_host = 0;
};

struct LaneProfile {
  std::vector<LinkRate> link;  // by rising size
  double copy_latency_s = 0;   // of a copy of a few bytes to the device, until its event has fired
  LaneCosts costs;             // of a layer, in steps of `rows` sequences; without a host lane
};

struct LaneProfileOptions {
  int64_t rows = 1;              // sequences of a step
  int64_t stored_row_bytes = 0;  // of KV, as the host stores it
  int64_t x_row_bytes = 0;       // 0: X is not stored, and recomputation not measured: it costs nothing
  RowForm x_form = RowForm::kF32;
  std::optional<KvQuant> kv_quant = {};  // of a store that quantises KV: recomputed rows pass it, too
  std::function<absl::Time()> now = MonotonicNow;
};

// Blocks, for some hundred milliseconds where the link is not very slow; nothing else runs on the device meanwhile.
// What it takes to enqueue work and to learn that it is done is in no rate: each is the difference between some
// launches and twice as many. RESOURCE_EXHAUSTED where the device has no memory for it.
absl::StatusOr<LaneProfile> MeasureLanes(const Model& model, Device& device, const LaneProfileOptions& options);

// The same of the link alone, with small blocks and fewer runs: some milliseconds, and a megabyte of device memory.
// profile.link, which stays as long, has what was measured now, the other rates change as it did, and with them
// costs.link_bytes_per_s. Nothing changes on errors.
absl::Status MeasureLinkAgain(const Model& model, Device& device, LaneProfile& profile);

}  // namespace runahead
