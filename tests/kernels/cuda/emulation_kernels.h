// Kernels for the test of the emulation. Pointers are to memory that the GPU reaches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace runahead {

// Every thread writes its indices where it stands in the grid, x fastest.
cudaError_t LaunchIndices(uint3* threads, uint3* blocks, dim3 grid, dim3 block, cudaStream_t stream);
// sums[b] = sum of the block's `threads` values; threads: a multiple of 32. T: int, int64_t, float, double.
template <typename T>
cudaError_t LaunchBlockSum(const T* values, T* sums, int blocks, int threads, cudaStream_t stream);
// Reverses `values` through shared memory; it takes the barrier to be right.
cudaError_t LaunchReverse(int* values, int threads, bool synchronise, cudaStream_t stream);
// One warp, eight results a lane.
cudaError_t LaunchShuffles(int* out, cudaStream_t stream);
// Odd threads end before a barrier; out[t] of the even ones is t ^ 2.
cudaError_t LaunchSomeLeave(int* out, int threads, cudaStream_t stream);
// Warp w shuffles w times before the barrier: out = 2^w.
cudaError_t LaunchWarpsApart(int* out, int threads, cudaStream_t stream);
// Four threads a block copy shared memory that none has written.
cudaError_t LaunchReadUnwritten(float* out, int blocks, cudaStream_t stream);
cudaError_t LaunchAtomics(int* count, float* sum, int* most, int blocks, int threads, cudaStream_t stream);
// Mistakes.
cudaError_t LaunchShuffleWithTheGone(int* out, cudaStream_t stream);
cudaError_t LaunchHalfABarrier(cudaStream_t stream);
// values[i] += summand for all threads of the grid, which is one-dimensional.
cudaError_t LaunchAdd(int* values, int summand, dim3 grid, dim3 block, cudaStream_t stream);

}  // namespace runahead
