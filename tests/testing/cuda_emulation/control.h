// How tests arrange and look into the emulated CUDA. All of it is thread-safe and of the whole process.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace runahead::cuda_emulation {

// A machine with `count` GPUs (1 at the start). With an error, such as cudaErrorInsufficientDriver or
// cudaErrorNoDevice, every function of the API returns it, and cudaGetDeviceCount leaves the count unwritten.
void SetDevices(int count, cudaError_t error = cudaSuccess);
// Of each device; 4 GiB at the start. Allocations beyond it get cudaErrorMemoryAllocation.
void SetTotalMemory(size_t bytes);
// Of each device: 75 for 7.5; 90 at the start.
void SetCapability(int capability);
// The next call of `function` ("cudaMallocAsync") does nothing and returns `error`; cudaLaunchKernelEx too.
void FailNext(std::string_view function, cudaError_t error);

// What has been made and not destroyed. Memory counts as freed when cudaFreeAsync is called.
struct LiveObjects {
  int streams = 0;
  int events = 0;
  int graphs = 0;
  int graph_execs = 0;
  int device_allocations = 0;
  size_t device_bytes = 0;
  int host_allocations = 0;
  int host_registrations = 0;
  size_t registered_bytes = 0;
  bool operator==(const LiveObjects&) const = default;
};
LiveObjects CountLiveObjects();

// Calls that put a kernel or a graph on a stream; captured ones and those inside a graph do not count.
int64_t KernelLaunches();
int64_t GraphLaunches();
// Copies likewise, and executable graphs that were made.
int64_t Copies();
int64_t GraphInstantiations();

}  // namespace runahead::cuda_emulation
