// Opens the device that the options ask for.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/cpu/shared_weights.h"
#include "kernels/cuda/peer_comm.h"
#include "worker/model_facts.h"
#include "worker/options.h"

namespace runahead {

struct OpenedDevice {
  std::shared_ptr<Device> device;
  std::unique_ptr<PeerCommFactory> peer_comms;  // between GPUs; null on the CPU. Goes before the device
  // Where the device puts what it loads: to be completed, or abandoned. Null: none.
  std::shared_ptr<SharedWeights> shared_weights;
};

// For `model`: dtype `auto` goes by what its weights are.
//
// Device `auto` takes the GPU where there is one, and says in the log why it took the CPU. UNAVAILABLE when a GPU was
// asked for and there is none; RESOURCE_EXHAUSTED as ShareWeights (worker/weight_sharing.h); INVALID_ARGUMENT or
// UNIMPLEMENTED, naming the option, for what the device cannot; FAILED_PRECONDITION when there is a GPU, but not for
// this build.
absl::StatusOr<OpenedDevice> OpenDevice(const WorkerOptions& options, const ModelFacts& model);

// A CPU device for work on host memory beside `device`: with the threads of host_lane_threads, or the cores that
// `device` leaves, at least one.
absl::StatusOr<std::shared_ptr<Device>> OpenHostDevice(const WorkerOptions& options, const Device& device);

}  // namespace runahead
