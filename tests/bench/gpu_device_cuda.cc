#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/numa.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/loader.h"
#include "tests/bench/gpu_device.h"

namespace runahead {

absl::StatusOr<BenchDevice> OpenBenchDevice(DType dtype) {
  RUNAHEAD_RETURN_IF_ERROR(ProbeGpu());
  RUNAHEAD_ASSIGN_OR_RETURN(const CudaPlugin* plugin, OpenCudaPlugin());
  RUNAHEAD_ASSIGN_OR_RETURN(const CudaDeviceInfo info, plugin->info(0));
  // As a worker does: host memory that copies read, and the threads beside.
  const std::optional<NumaNode> node = NumaNodeOfPciDevice(info.pci_address);
  const bool stays = node.has_value() && StayOnNumaNode(*node).ok();
  BenchDevice opened;
  RUNAHEAD_ASSIGN_OR_RETURN(opened.device, plugin->open({.compute_dtype = dtype}));
  opened.description = absl::StrCat(info.name, ", driver for CUDA ", info.driver_version / 1000, ".",
                                    info.driver_version % 1000 / 10, ", ", info.free_bytes >> 20, " MiB free",
                                    stays ? absl::StrCat("; host memory and threads on NUMA node ", node->number) : "");
  return opened;
}

}  // namespace runahead
