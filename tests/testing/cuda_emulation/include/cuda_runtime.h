// CUDA C++ as far as Runahead's kernels use it, compiled by a plain C++ compiler and run on CPU threads: the threads of
// a block are fibers of one thread.
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One copy for each thread of the CPU, because all threads of a block run on one; `alignas` goes before it.
#define __shared__ static thread_local

// Variables, as in CUDA; kernels only read them.
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;
inline constexpr int warpSize = 32;

namespace runahead::cuda_emulation {

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread);

enum class WarpOp { kSync, kShuffle, kBallot };
// The values of the lanes of a warp that meet here. `participants` has a bit for each that came; the others have
// exited.
struct WarpValues {
  const uint64_t* of_lane;
  uint32_t participants;
  int lane;  // of the caller
};
WarpValues Meet(WarpOp op, uint32_t mask, uint64_t value);
// The lane's value; ends the process when that lane has exited or has never been.
uint64_t ValueOf(const WarpValues& values, int lane);

template <typename T>
T Shuffle(uint32_t mask, T value, int (*source)(int lane, int argument, int first, int last), int argument, int width) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const WarpValues values = Meet(WarpOp::kShuffle, mask, std::bit_cast<Bits>(value));
  const int first = values.lane & ~(width - 1);
  const int lane = source(values.lane, argument, first, first + width - 1);
  return std::bit_cast<T>(static_cast<Bits>(ValueOf(values, lane)));
}

}  // namespace runahead::cuda_emulation

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  return runahead::cuda_emulation::LaunchKernel(
      *config, reinterpret_cast<const void*>(kernel),
      [kernel, params = std::tuple<Params...>(std::forward<Args>(args)...)] { std::apply(kernel, params); });
}

void __syncthreads();
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  runahead::cuda_emulation::Meet(runahead::cuda_emulation::WarpOp::kSync, mask, 0);
}
inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return runahead::cuda_emulation::Shuffle(
      mask, value, [](int, int argument, int first, int last) { return first | (argument & (last - first)); }, source,
      width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  return runahead::cuda_emulation::Shuffle(
      mask, value,
      [](int lane, int argument, int, int last) { return (lane ^ argument) > last ? lane : lane ^ argument; },
      lane_mask, width);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return runahead::cuda_emulation::Shuffle(
      mask, value,
      [](int lane, int argument, int, int last) { return lane + argument > last ? lane : lane + argument; },
      static_cast<int>(delta), width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return runahead::cuda_emulation::Shuffle(
      mask, value,
      [](int lane, int argument, int first, int) { return lane - argument < first ? lane : lane - argument; },
      static_cast<int>(delta), width);
}
unsigned __ballot_sync(unsigned mask, int predicate);
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, !predicate) == 0;
}

template <typename T>
T atomicAdd(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_add(value);
}
template <typename T>
T atomicMax(T* address, T value) {
  std::atomic_ref<T> target(*address);
  T old = target.load();
  while (old < value && !target.compare_exchange_weak(old, value)) {
  }
  return old;
}

inline int __float_as_int(float value) {
  return std::bit_cast<int>(value);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline float __int_as_float(int value) {
  return std::bit_cast<float>(value);
}
inline float __uint_as_float(unsigned value) {
  return std::bit_cast<float>(value);
}
inline int __popc(unsigned value) {
  return std::popcount(value);
}
inline int __ffs(int value) {
  return __builtin_ffs(value);
}
inline int __clz(int value) {
  return std::countl_zero(static_cast<unsigned>(value));
}
template <typename T>
T __ldg(const T* address) {
  return *address;
}

// Never fused: the volatile keeps a compiler from it.
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;
  return product;
}

inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline float __expf(float x) {
  return expf(x);
}
inline float __logf(float x) {
  return logf(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fmaf_rn(float x, float y, float z) {
  return fmaf(x, y, z);
}

#define RUNAHEAD_MIN_MAX(T) \
  inline T min(T a, T b) {  \
    return b < a ? b : a;   \
  }                         \
  inline T max(T a, T b) {  \
    return a < b ? b : a;   \
  }
RUNAHEAD_MIN_MAX(int)
RUNAHEAD_MIN_MAX(unsigned int)
RUNAHEAD_MIN_MAX(long)
RUNAHEAD_MIN_MAX(unsigned long)
RUNAHEAD_MIN_MAX(long long)
RUNAHEAD_MIN_MAX(unsigned long long)
#undef RUNAHEAD_MIN_MAX
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double min(double a, double b) {
  return fmin(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}
