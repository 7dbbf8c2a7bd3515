// Reductions over a warp and over a block. All threads get the result, and it is the same bits in all of them and in
// every run, provided that combine(a, b) is bitwise combine(b, a).
#pragma once

#include <cuda_runtime.h>

namespace runahead {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;

struct Add {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

template <typename T>
__device__ inline T ShuffleXor(T value, int lanes) {
  return __shfl_xor_sync(kFullWarp, value, lanes);
}

// sum = sum_i exp(x_i - max), max = max_i x_i, of some x. `max` is finite or +inf: a floor stands in for -inf, so that
// no difference of infinities arises. A NaN among the x makes `sum` NaN.
struct ExpSum {
  float max;
  float sum;

  static constexpr float kFloor = -3.402823466e38f;

  __device__ void Include(float x) {
    if (x > max) {
      sum *= expf(max - x);
      max = x;
    }
    sum += x == max ? 1.0f : expf(x - max);
  }
};

__device__ inline ExpSum ShuffleXor(ExpSum value, int lanes) {
  return {ShuffleXor(value.max, lanes), ShuffleXor(value.sum, lanes)};
}

struct Join {
  __device__ ExpSum operator()(ExpSum a, ExpSum b) const {
    const bool swap = a.max < b.max;
    const ExpSum high = swap ? b : a;
    const ExpSum low = swap ? a : b;
    return {high.max, high.sum + low.sum * (low.max == high.max ? 1.0f : expf(low.max - high.max))};
  }
};

// Over each run of `width` lanes, a power of two.
template <typename T, typename Combine>
__device__ inline T WarpReduce(T value, const Combine& combine, int width = kWarpSize) {
#pragma unroll
  for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
    if (lanes < width) value = combine(value, ShuffleXor(value, lanes));
  }
  return value;
}

// For blocks of 1, 2, 4, ... 32 whole warps along x. All threads of the block call it.
template <typename T, typename Combine>
__device__ inline T BlockReduce(T value, const Combine& combine) {
  __shared__ T of_warps[kWarpSize];
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  value = WarpReduce(value, combine);
  __syncthreads();  // what an earlier call left has been read
  if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  return WarpReduce(of_warps[threadIdx.x % warps], combine, warps);
}

}  // namespace runahead
