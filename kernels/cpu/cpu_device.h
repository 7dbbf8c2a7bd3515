// The CPU device: streams are threads, loops run on one pool, host-device copies may be paced like over a real link.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/cpu/cpu_device_options.h"

namespace runahead {

// Errors: those of CheckCpuDeviceOptions; UNIMPLEMENTED for a compute dtype that is neither f32 nor bf16. Streams,
// buffers and weights must not outlive the device. A failure of the device itself ends the process.
absl::StatusOr<std::shared_ptr<Device>> NewCpuDevice(const CpuDeviceOptions& options);

}  // namespace runahead
