#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kThreads = 256;

// Of word `at`: every word of 64 bits gives another value, and the same word another one elsewhere. So a change within
// one word always changes the sum of all, and others do but for one in 2^64.
__device__ uint64_t Mixed(uint64_t word, uint64_t at) {
  uint64_t x = word + (at + 1) * 0x9E3779B97F4A7C15ull;  // MurmurHash3's finalizer
  x ^= x >> 33;
  x *= 0xFF51AFD7ED558CCDull;
  x ^= x >> 33;
  x *= 0xC4CEB9FE1A85EC53ull;
  return x ^ (x >> 33);
}

// `size` bytes, at most 8, as a word.
__device__ uint64_t WordOf(const unsigned char* bytes, size_t size) {
  uint64_t word = 0;
  for (size_t i = 0; i < size; ++i) word |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return word;
}

__global__ void SumKernel(const unsigned char* bytes, size_t size, bool aligned, uint64_t* partials) {
  const size_t words = size / sizeof(uint64_t);
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  uint64_t sum = 0;
  for (size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < words; at += step) {
    const uint64_t word = aligned ? reinterpret_cast<const uint64_t*>(bytes)[at]
                                  : WordOf(bytes + at * sizeof(uint64_t), sizeof(uint64_t));
    sum += Mixed(word, at);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    sum += Mixed(WordOf(bytes + words * sizeof(uint64_t), size % sizeof(uint64_t)), words) + Mixed(size, words + 1);
  }
  sum = BlockReduce(sum, Add());
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

}  // namespace

cudaError_t LaunchSum(const std::byte* bytes, size_t size, uint64_t* partials, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(bytes) % sizeof(uint64_t) == 0;
  return Launch(SumKernel, dim3(kSumPartials), dim3(kThreads), stream, reinterpret_cast<const unsigned char*>(bytes),
                size, aligned, partials);
}

}  // namespace runahead
