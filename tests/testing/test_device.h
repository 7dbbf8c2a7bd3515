// The device that a test runs on. Which one is decided by what its binary links: the CPU's (testing_device), the CUDA
// device over an emulated GPU (testing_device_emulated), or the plugin on a real one (testing_device_gpu).
#pragma once

#include <memory>
#include <vector>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/cuda/peer_comm.h"

namespace runahead {

// A device of its own. UNIMPLEMENTED where it cannot compute in `dtype`; UNAVAILABLE, "skipped: no CUDA device ...",
// where there is no GPU. `threads` is for the CPU.
absl::StatusOr<std::shared_ptr<Device>> OpenTestDevice(DType dtype, int threads);

// What joins `device`, which is one of OpenTestDevice, to other GPUs; null where there are none.
absl::StatusOr<std::unique_ptr<PeerCommFactory>> OpenTestPeerComms(Device& device);

enum class TestDeviceForm { kCpu, kEmulated, kGpu };
TestDeviceForm FormOfTestDevice();

// What devices of that form compute in: f16 is for GPUs. What this machine's CPU lacks among them is skipped.
inline std::vector<DType> TestDeviceDTypes() {
  if (FormOfTestDevice() == TestDeviceForm::kCpu) return {DType::kF32, DType::kBF16};
  return {DType::kF32, DType::kBF16, DType::kF16};
}

// Emulated kernels run some thousand times slower than real ones: tests take smaller sizes where this is true.
inline bool TestDeviceIsSlow() {
  return FormOfTestDevice() == TestDeviceForm::kEmulated;
}

// On the emulated GPU, how often a head's query was attended over a piece of KV by what stands for FlashInfer's decode
// kernel. Nothing where this is not counted: a real GPU takes the same kernels by the same choice (cuda_attention.cc).
std::optional<int64_t> FlashPiecesOnTestDevice();

// Ends the test as skipped where `status`, of OpenTestDevice, says that there is no such device here; any other failure
// is the test's.
#define RUNAHEAD_SKIP_WITHOUT_DEVICE(status)                                       \
  if (const absl::Status need = (status); !need.ok()) {                            \
    ASSERT_TRUE(absl::IsUnimplemented(need) || absl::IsUnavailable(need)) << need; \
    GTEST_SKIP() << need.message();                                                \
  }
#define RUNAHEAD_NEED_TEST_DEVICE(dtype) RUNAHEAD_SKIP_WITHOUT_DEVICE(::runahead::OpenTestDevice(dtype, 1).status())

}  // namespace runahead
