// What the CUDA plugin (librunahead_cuda.so) offers to the binary that opens it. The plugin holds all that needs CUDA
// or NCCL to load; the binary needs neither.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/cuda/peer_comm.h"

namespace runahead {

// Raised with every change of what is below, or of the classes that cross the border (Device, Event, Buffer, Weights,
// PeerComm).
inline constexpr uint32_t kCudaPluginAbi = 1;

// Name of the symbol that is looked up: a function of type CudaPluginEntry.
inline constexpr char kCudaPluginEntry[] = "runahead_cuda_plugin";

struct CudaDeviceOptions {
  int ordinal = 0;
  DType compute_dtype = DType::kBF16;
  size_t memory_budget = 0;  // bytes of device memory, weights included; 0: nine tenths of what is free
};

// What a GPU is, for logs and for the choice of a device.
struct CudaDeviceInfo {
  std::string name;         // as the driver calls it
  std::string pci_address;  // "0000:3b:00.0"
  int compute_major = 0;
  int compute_minor = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  int driver_version = 0;  // of CUDA that the driver supports: 1000 * major + 10 * minor
};

struct CudaPlugin {
  // These two are read before all others. C++ crosses the border: both sides must be of one build.
  uint32_t abi = kCudaPluginAbi;
  const char* build = nullptr;  // RUNAHEAD_BUILD_ID

  // How many GPUs this process can use, at least 1. UNAVAILABLE says why there is none.
  absl::StatusOr<int> (*count)() = nullptr;
  absl::StatusOr<CudaDeviceInfo> (*info)(int ordinal) = nullptr;
  absl::StatusOr<std::shared_ptr<Device>> (*open)(const CudaDeviceOptions& options) = nullptr;
  // Communicators between buffers of `device`, which outlives them and must be of this plugin.
  absl::StatusOr<std::unique_ptr<PeerCommFactory>> (*open_peer_comms)(Device& device) = nullptr;
};

using CudaPluginEntry = const CudaPlugin* (*)();

}  // namespace runahead
