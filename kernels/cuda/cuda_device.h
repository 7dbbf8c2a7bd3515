// The CUDA device: cuBLASLt, FlashInfer and our own kernels on one GPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/cuda/plugin.h"

namespace runahead {

// INVALID_ARGUMENT for an ordinal or a budget that the machine does not have; FAILED_PRECONDITION for a GPU or a driver
// that is too old; UNAVAILABLE without a GPU. Streams, buffers and weights must not outlive the device. A failure of
// the GPU itself ends the process.
absl::StatusOr<std::shared_ptr<Device>> NewCudaDevice(const CudaDeviceOptions& options);

}  // namespace runahead
