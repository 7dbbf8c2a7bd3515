// Opens the device that the options ask for.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/cuda/peer_comm.h"
#include "worker/options.h"

namespace runahead {

struct OpenedDevice {
  std::shared_ptr<Device> device;
  std::unique_ptr<PeerCommFactory> peer_comms;  // between GPUs; null on the CPU. Goes before the device
};

// `weights_are_quantised`: most of the model's, which dtype `auto` goes by.
//
// Device `auto` takes the GPU where there is one, and says in the log why it took the CPU. UNAVAILABLE when a GPU was
// asked for and there is none; INVALID_ARGUMENT or UNIMPLEMENTED, naming the option, for what the device cannot;
// FAILED_PRECONDITION when there is a GPU, but not for this build.
absl::StatusOr<OpenedDevice> OpenDevice(const WorkerOptions& options, bool weights_are_quantised);

// A CPU device for work on host memory beside `device`: with the threads of host_lane_threads, or the cores that
// `device` leaves, at least one.
absl::StatusOr<std::shared_ptr<Device>> OpenHostDevice(const WorkerOptions& options, const Device& device);

}  // namespace runahead
