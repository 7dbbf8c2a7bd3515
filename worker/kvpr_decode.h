// Decode over KV that the device has no room for: where it is kept, and the loop that runs over it (docs/kvpr.md).
#pragma once

#include <cstdint>
#include <functional>
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
#include "worker/metrics/decode_metrics.h"
#include "worker/model/model.h"
#include "worker/options.h"

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

// Bytes of X in `form` of one token in one layer that a store in host memory is to keep; 0: none, for recomputing from
// it would gain nothing, for X is more than three quarters of KV as it is stored, or is not wanted.
int64_t XRowBytes(const WorkerOptions& options, const ModelConfig& config, const Device& device, RowForm form);

// What a worker says at start of X beside KV in host memory: in what form it is kept, or why it is not.
std::string XText(const WorkerOptions& options, const ModelConfig& config, const Device& device, RowForm form);

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

// Who is told what the loop finds.
struct KvprReaders {
  DecodeMetrics& metrics;
  std::optional<LaneProfile>& profile;  // set by NewKvprLoop
};

// From where on KV of a prompt is needed whose X comes (KvFrom): by `recompute`, and by what the lanes cost in the
// profile, for those who hand off know nothing of what they cost later. Where there is X: not with `recompute: off`.
std::function<int64_t(int64_t prompt_tokens)> KvFromOf(const WorkerOptions& options, const LaneCosts& profile);

// The loop over `store`, which is in host memory; measures the devices first. All references outlive it.
absl::StatusOr<std::unique_ptr<StepLoop>> NewKvprLoop(const WorkerOptions& options, const Model& model,
                                                      const KvprDevices& devices, const KvStore& store,
                                                      size_t spare_bytes, const KvprReaders& readers);

}  // namespace runahead
