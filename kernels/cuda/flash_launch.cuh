// What launches of FlashInfer's kernels have in common.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "kernels/base/dtype.h"

namespace runahead {

// Lets the kernel have `bytes` of dynamic shared memory, which may be more than what kernels get unasked. Said once for
// each GPU: the driver may wait for copies under way before it takes it.
template <auto kKernel>
cudaError_t AllowSharedMemory(size_t bytes) {
  static std::atomic<uint64_t> allowed{0};  // a bit for each of the first 64 GPUs
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((allowed.load(std::memory_order_acquire) & bit) != 0) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) allowed.fetch_or(bit, std::memory_order_release);
  return error;
}

// With `bytes` of dynamic shared memory, the same for every launch of the kernel.
template <auto kKernel, typename Params>
cudaError_t LaunchWithSharedMemory(dim3 grid, dim3 block, size_t bytes, cudaStream_t stream, const Params& params) {
  if (const cudaError_t error = AllowSharedMemory<kKernel>(bytes); error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kKernel, params);
}

// Calls function.operator()<element type, head_dim>() for what FlashTakes.
template <typename Function>
cudaError_t ForFlashType(DType dtype, int head_dim, const Function& function) {
  const auto for_dim = [&]<typename T>() {
    if (head_dim == 64) return function.template operator()<T, 64>();
    if (head_dim == 128) return function.template operator()<T, 128>();
    if (head_dim == 256) return function.template operator()<T, 256>();
    return cudaErrorInvalidValue;
  };
  if (dtype == DType::kBF16) return for_dim.template operator()<__nv_bfloat16>();
  if (dtype == DType::kF16) return for_dim.template operator()<__half>();
  return cudaErrorInvalidValue;
}

}  // namespace runahead
