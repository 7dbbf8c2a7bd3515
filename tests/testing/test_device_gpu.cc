#include <cstdio>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/loader.h"
#include "tests/testing/test_device.h"

namespace runahead {

// The plugin stands beside the workers' binary, one folder up from the tests'.
absl::StatusOr<std::shared_ptr<Device>> OpenTestDevice(DType dtype, int) {
  const auto none = [](const absl::Status& why) {
    return absl::UnavailableError(absl::StrCat("skipped: no CUDA device: ", why.message()));
  };
  if (const absl::Status gpu = ProbeGpu(); !gpu.ok()) return none(gpu);
  const absl::StatusOr<const CudaPlugin*> plugin = OpenCudaPlugin();
  if (!plugin.ok()) std::fprintf(stderr, "%s\n", plugin.status().ToString().c_str());
  RUNAHEAD_CHECK(plugin.ok());  // a GPU and no plugin is no reason to skip
  if (const auto count = (*plugin)->count(); !count.ok()) return none(count.status());
  return (*plugin)->open({.compute_dtype = dtype});
}

absl::StatusOr<std::unique_ptr<PeerCommFactory>> OpenTestPeerComms(Device& device) {
  RUNAHEAD_ASSIGN_OR_RETURN(const CudaPlugin* const plugin, OpenCudaPlugin());
  return plugin->open_peer_comms(device);
}

TestDeviceForm FormOfTestDevice() {
  return TestDeviceForm::kGpu;
}

std::optional<int64_t> FlashPiecesOnTestDevice() {
  return std::nullopt;
}

}  // namespace runahead
