#include "kernels/cpu/cpu_device.h"
#include "tests/testing/test_device.h"

namespace runahead {

absl::StatusOr<std::shared_ptr<Device>> OpenTestDevice(DType dtype, int threads) {
  return NewCpuDevice({.threads = threads, .compute_dtype = dtype});
}

absl::StatusOr<std::unique_ptr<PeerCommFactory>> OpenTestPeerComms(Device&) {
  return nullptr;
}

TestDeviceForm FormOfTestDevice() {
  return TestDeviceForm::kCpu;
}

std::optional<int64_t> FlashPiecesOnTestDevice() {
  return std::nullopt;
}

}  // namespace runahead
