// How our kernels are launched: no <<<>>>, so that the same sources also build with a plain C++ compiler against the
// emulated CUDA of tests/testing.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace runahead {

template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), dim3 grid, dim3 block, cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace runahead
