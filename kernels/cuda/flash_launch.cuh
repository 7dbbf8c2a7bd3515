// What launches of FlashInfer's kernels have in common.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/base/dtype.h"

namespace runahead {

// With `bytes` of dynamic shared memory, which may be more than what a kernel gets unasked.
template <typename Params>
cudaError_t LaunchWithSharedMemory(void (*kernel)(Params), dim3 grid, dim3 block, size_t bytes, cudaStream_t stream,
                                   const std::type_identity_t<std::remove_const_t<Params>>& params) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, params);
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
