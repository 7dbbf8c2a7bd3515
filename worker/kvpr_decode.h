// Decode over KV that the device has no room for: where it is kept, and the loop that runs over it (docs/kvpr.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/base/row_form.h"
#include "worker/decode/kvpr/profile.h"
#include "worker/decode/step_loop.h"
#include "worker/kv/store.h"
#include "worker/lane_profiler.h"
#include "worker/metrics/decode_metrics.h"
#include "worker/model/model.h"
#include "worker/options.h"
#include "worker/x_demand.h"

namespace runahead {

// INVALID_ARGUMENT, naming the option, where it is for a link and `device` has none.
absl::Status CheckKvprOptions(const WorkerOptions& options, const Device& device);

// Whether all of kv_memory may be tried in device memory: KV is not quantised, and there is no budget for it, or a
// large enough one.
bool MayKeepKvOnDevice(const WorkerOptions& options);

// How a store keeps KV by kv_bits: in groups of 64 or 32 values, quantised by `host`, which computes on host memory and
// outlives the store; none at 16 bits. INVALID_ARGUMENT where the model's rows are not whole groups.
absl::StatusOr<std::optional<KvQuantisation>> QuantisationOf(const WorkerOptions& options, const ModelConfig& config,
                                                             DType kv_dtype, Device* host);

// In which form a store in host memory keeps X that comes in `arrives`, by x_bits: in that one, or in 8 or 4 bits.
// `auto` takes KV's bits where that is quantised, if these spare the link while the form in which X comes would hardly
// do.
RowForm KeptXForm(const WorkerOptions& options, const ModelConfig& config, DType kv_dtype, RowForm arrives);

// Bytes of X of one token in one layer, in the form that it is kept in, that a store in host memory may keep; 0: none,
// for recomputing from it would gain nothing, for X is more than three quarters of KV as it is stored, or is not
// wanted.
int64_t XRowBytes(const WorkerOptions& options, const ModelConfig& config, const Device& device, RowForm arrives);

// X beside KV in a store in host memory.
struct KeptX {
  int64_t row_bytes = 0;  // of a token in one layer; 0: none is kept
  RowForm arrives = RowForm::kF32, form = RowForm::kF32;
  std::string text;  // what a worker says of it at start: in what form it is kept, or why it is not
};

// X of XRowBytes, where it is worth a part of kv_memory: where steps of the longest sequences, as many as fill
// kv_memory, would be kLeastGainOfX times as fast by `measured`, were recomputation twice as fast as that; or where
// `recompute` is a number.
KeptX XToKeep(const WorkerOptions& options, const ModelConfig& config, const Device& device, RowForm arrives,
              const LaneCosts& measured);

// Whether decode may run with weights in host memory (kUseStreamed): by its schedule, its role and the device's link.
bool MayStreamWeights(const WorkerOptions& options, const Device& device);

// kUseRecompute where decode may recompute, else 0: for LoadModel. `streamed`: of weights that are, with which KV is in
// host memory in any case.
unsigned RecomputeUses(const WorkerOptions& options, const ModelConfig& config, const Device& device, bool streamed);

// What computes: the device, on `stream`, and beside it a CPU device on host memory.
struct KvprDevices {
  Device& device;
  Device& host;
  Stream& stream;
};

// What is known of the lanes before there is a store.
struct KvprLanes {
  std::shared_ptr<LaneProfiler> profiler;
  LaneProfile profile;  // without X where none is kept
  KeptX x;
  std::shared_ptr<XDemand> demand;  // follows what steps of the loop measure
};

// Measures the devices, and says what of it is to be kept; `stored_row_bytes`: of KV of a token in one layer, as the
// store is to keep it. All references outlive the result, and the loop that is made with it.
absl::StatusOr<KvprLanes> MeasureKvprLanes(const WorkerOptions& options, const Model& model, Device& device,
                                           Device& host, int64_t stored_row_bytes, DecodeMetrics& metrics);

// The loop over `store`, which is in host memory and keeps X as `lanes` say. All references outlive it.
absl::StatusOr<std::unique_ptr<StepLoop>> NewKvprLoop(const WorkerOptions& options, const Model& model,
                                                      const KvprDevices& devices, const KvStore& store,
                                                      size_t spare_bytes, const KvprLanes& lanes,
                                                      DecodeMetrics& metrics);

}  // namespace runahead
