// The device that the GPU benchmark measures: what its binary links decides which.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"

namespace runahead {

struct BenchDevice {
  std::shared_ptr<Device> device;
  std::string description;  // as its maker calls it, and what drives it
};

// Errors: UNAVAILABLE without a GPU, UNIMPLEMENTED for a dtype that the device does not compute in.
absl::StatusOr<BenchDevice> OpenBenchDevice(DType dtype);

}  // namespace runahead
