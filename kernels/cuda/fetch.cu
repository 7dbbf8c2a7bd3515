#include <algorithm>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kFetchThreads = 256;
constexpr size_t kMostFetchBlocks = 64;
using Words = Pack<uint32_t, 4>;

__global__ void FetchKernel(const Words* from, Words* to, size_t count) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) to[i] = from[i];
}

}  // namespace

cudaError_t LaunchFetch(const std::byte* from, std::byte* to, size_t bytes, cudaStream_t stream) {
  const size_t count = (bytes + sizeof(Words) - 1) / sizeof(Words);
  if (count == 0) return cudaSuccess;
  const size_t blocks = std::min(kMostFetchBlocks, (count + kFetchThreads - 1) / kFetchThreads);
  return Launch(FetchKernel, dim3(static_cast<unsigned>(blocks)), dim3(kFetchThreads), stream,
                reinterpret_cast<const Words*>(from), reinterpret_cast<Words*>(to), count);
}

}  // namespace runahead
