// The device that a test runs on. Which one is decided by what its binary links: the CPU's (testing_device), the CUDA
// device over an emulated GPU (testing_device_emulated), or the plugin on a real one (testing_device_gpu).
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"

namespace runahead {

// A device of its own. UNIMPLEMENTED where it cannot compute in `dtype`; UNAVAILABLE, "skipped: no CUDA device ...",
// where there is no GPU. `threads` is for the CPU.
absl::StatusOr<std::shared_ptr<Device>> OpenTestDevice(DType dtype, int threads);

// Emulated kernels run some thousand times slower than real ones: tests take smaller sizes where this is true.
bool TestDeviceIsSlow();

// Ends the test as skipped where the device is not there.
#define RUNAHEAD_OPEN_TEST_DEVICE(device, dtype, threads)                        \
  const auto device##_or = OpenTestDevice(dtype, threads);                       \
  if (!device##_or.ok()) GTEST_SKIP() << device##_or.status().message();         \
  Device& device = **device##_or

// `values` as `rows` rows in the device's memory, `spare` NaN columns behind each.
Tensor PutTensor(Device& device, const std::vector<float>& values, int64_t rows, DType dtype = DType::kF32,
                 int64_t spare = 0);
Tensor NewTensor(Device& device, DType dtype, int64_t rows, int64_t cols, int64_t spare = 0);
BufferRef PutBytes(Device& device, const std::vector<std::byte>& bytes);

// What is there once `stream` has run what it has; the rows dense.
std::vector<float> TakeTensor(Device& device, Stream& stream, const Tensor& tensor);
std::vector<std::byte> TakeBytes(Device& device, Stream& stream, const BufferRef& ref);

// Values as they are after rounding to `dtype`.
std::vector<float> Rounded(std::vector<float> values, DType dtype);

}  // namespace runahead
