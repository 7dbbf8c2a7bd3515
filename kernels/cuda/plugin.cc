#include "kernels/cuda/plugin.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/nccl_peer_comm_factory.h"

namespace runahead {
namespace {

// The count is written by success only.
absl::StatusOr<int> Count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  return absl::UnavailableError(code == cudaSuccess ? "CUDA shows no GPU"
                                                    : absl::StrCat("CUDA shows no GPU: ", cudaGetErrorString(code)));
}

absl::StatusOr<CudaDeviceInfo> Info(int ordinal) {
  RUNAHEAD_ASSIGN_OR_RETURN(const int count, Count());
  if (ordinal < 0 || ordinal >= count) {
    return absl::InvalidArgumentError(absl::StrCat("GPU ", ordinal, " of ", count, ": they are numbered from 0"));
  }
  cudaDeviceProp properties;
  CudaDeviceInfo info;
  size_t free = 0, total = 0;
  RUNAHEAD_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "choosing the GPU"));
  RUNAHEAD_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "asking what the GPU is"));
  RUNAHEAD_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "asking for free GPU memory"));
  RUNAHEAD_RETURN_IF_ERROR(CudaStatus(cudaDriverGetVersion(&info.driver_version), "asking for the driver's version"));
  info.name = properties.name;
  info.pci_address =
      absl::StrFormat("%04x:%02x:%02x.0", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.total_bytes = static_cast<int64_t>(total);
  info.free_bytes = static_cast<int64_t>(free);
  return info;
}

}  // namespace
}  // namespace runahead

extern "C" __attribute__((visibility("default"))) const runahead::CudaPlugin* runahead_cuda_plugin() {
  static const runahead::CudaPlugin plugin = {
      .build = RUNAHEAD_BUILD_ID,
      .count = runahead::Count,
      .info = runahead::Info,
      .open = runahead::NewCudaDevice,
      .open_peer_comms = runahead::NewNcclPeerCommFactory,
  };
  return &plugin;
}
