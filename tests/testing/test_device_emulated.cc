#include "kernels/cuda/cuda_device.h"
#include "tests/testing/cuda_emulation/plain_flash.h"
#include "tests/testing/test_device.h"

namespace runahead {

absl::StatusOr<std::shared_ptr<Device>> OpenTestDevice(DType dtype, int) {
  return NewCudaDevice({.compute_dtype = dtype});
}

absl::StatusOr<std::unique_ptr<PeerCommFactory>> OpenTestPeerComms(Device&) {
  return nullptr;
}

TestDeviceForm FormOfTestDevice() {
  return TestDeviceForm::kEmulated;
}

std::optional<int64_t> FlashPiecesOnTestDevice() {
  return PlainFlashPieces();
}

}  // namespace runahead
