#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/emulation_kernels.h"

namespace runahead {
namespace {

__global__ void Indices(uint3* threads, uint3* blocks) {
  const unsigned threads_per_block = blockDim.x * blockDim.y * blockDim.z;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  threads[block * threads_per_block + thread] = threadIdx;
  blocks[block * threads_per_block + thread] = blockIdx;
}

// Sum of a block's values by the shuffles of its warps, then by shared memory. The block has whole warps.
template <typename T>
__global__ void BlockSum(const T* values, T* sums) {
  __shared__ T of_warp[32];
  T value = values[blockIdx.x * blockDim.x + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += of_warp[warp];
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void Reverse(int* values, bool synchronise) {
  __shared__ int copy[1024];
  copy[threadIdx.x] = values[threadIdx.x];
  if (synchronise) __syncthreads();
  values[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

__global__ void Shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int* row = out + lane * 8;
  row[0] = __shfl_sync(0xffffffffu, lane, 3);
  row[1] = __shfl_down_sync(0xffffffffu, lane, 5);
  row[2] = __shfl_up_sync(0xffffffffu, lane, 5);
  row[3] = __shfl_xor_sync(0xffffffffu, lane, 17);
  row[4] = __shfl_sync(0xffffffffu, lane, 1, 8);
  row[5] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 2));
  row[6] = __any_sync(0xffffffffu, lane == 9);
  row[7] = __all_sync(0xffffffffu, lane < 31);
}

// Every second thread leaves; the others meet in a barrier and in halves of their warp.
__global__ void SomeLeave(int* out) {
  if (threadIdx.x % 2 == 1) return;
  __syncthreads();
  out[threadIdx.x] = __shfl_xor_sync(0x55555555u, static_cast<int>(threadIdx.x), 2);
}

__global__ void WarpsApart(int* out) {
  // Warps meet on their own as often as they like, while others wait in the barrier.
  int value = 1;
  for (unsigned i = 0; i < threadIdx.x / 32; ++i) value += __shfl_sync(0xffffffffu, value, 0);
  __syncwarp();
  __syncthreads();
  out[threadIdx.x] = value;
}

__global__ void ReadUnwritten(float* out) {
  __shared__ float unwritten[4];
  out[blockIdx.x * blockDim.x + threadIdx.x] = unwritten[threadIdx.x];
  unwritten[threadIdx.x] = 1.0f;
}

__global__ void Atomics(int* count, float* sum, int* most) {
  atomicAdd(count, 1);
  atomicAdd(sum, 0.5f);
  atomicMax(most, static_cast<int>(threadIdx.x));
}

__global__ void ShuffleWithTheGone(int* out) {
  if (threadIdx.x == 1) return;
  out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, static_cast<int>(threadIdx.x), 1);
}

__global__ void HalfABarrier() {
  if (threadIdx.x < 32 || threadIdx.x == 63) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__global__ void Add(int* values, int summand) {
  values[blockIdx.x * blockDim.x + threadIdx.x] += summand;
}

}  // namespace

cudaError_t LaunchIndices(uint3* threads, uint3* blocks, dim3 grid, dim3 block, cudaStream_t stream) {
  return Launch(Indices, grid, block, stream, threads, blocks);
}
template <typename T>
cudaError_t LaunchBlockSum(const T* values, T* sums, int blocks, int threads, cudaStream_t stream) {
  return Launch(BlockSum<T>, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), stream, values, sums);
}
template cudaError_t LaunchBlockSum(const int*, int*, int, int, cudaStream_t);
template cudaError_t LaunchBlockSum(const float*, float*, int, int, cudaStream_t);
template cudaError_t LaunchBlockSum(const double*, double*, int, int, cudaStream_t);
template cudaError_t LaunchBlockSum(const int64_t*, int64_t*, int, int, cudaStream_t);

cudaError_t LaunchReverse(int* values, int threads, bool synchronise, cudaStream_t stream) {
  return Launch(Reverse, 1, static_cast<unsigned>(threads), stream, values, synchronise);
}
cudaError_t LaunchShuffles(int* out, cudaStream_t stream) {
  return Launch(Shuffles, 1, 32, stream, out);
}
cudaError_t LaunchSomeLeave(int* out, int threads, cudaStream_t stream) {
  return Launch(SomeLeave, 1, static_cast<unsigned>(threads), stream, out);
}
cudaError_t LaunchWarpsApart(int* out, int threads, cudaStream_t stream) {
  return Launch(WarpsApart, 1, static_cast<unsigned>(threads), stream, out);
}
cudaError_t LaunchReadUnwritten(float* out, int blocks, cudaStream_t stream) {
  return Launch(ReadUnwritten, static_cast<unsigned>(blocks), 4, stream, out);
}
cudaError_t LaunchAtomics(int* count, float* sum, int* most, int blocks, int threads, cudaStream_t stream) {
  return Launch(Atomics, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), stream, count, sum, most);
}
cudaError_t LaunchShuffleWithTheGone(int* out, cudaStream_t stream) {
  return Launch(ShuffleWithTheGone, 1, 32, stream, out);
}
cudaError_t LaunchHalfABarrier(cudaStream_t stream) {
  return Launch(HalfABarrier, 1, 64, stream);
}
cudaError_t LaunchAdd(int* values, int summand, dim3 grid, dim3 block, cudaStream_t stream) {
  return Launch(Add, grid, block, stream, values, summand);
}

}  // namespace runahead
