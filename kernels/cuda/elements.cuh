// Elements in device code: conversion to and from float, 16-byte accesses where alignment allows them, and the choice
// of a kernel by element type. What a thread computes, and in which order, never depends on alignment: only how it
// loads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/cuda/kernels.h"

namespace runahead {

__device__ inline float LoadFloat(const float* from) {
  return *from;
}
__device__ inline float LoadFloat(const __nv_bfloat16* from) {
  return __bfloat162float(*from);
}
__device__ inline float LoadFloat(const __half* from) {
  return __half2float(*from);
}

// Rounds to nearest, ties to even.
__device__ inline void StoreFloat(float value, float* to) {
  *to = value;
}
__device__ inline void StoreFloat(float value, __nv_bfloat16* to) {
  *to = __float2bfloat16_rn(value);
}
__device__ inline void StoreFloat(float value, __half* to) {
  *to = __float2half_rn(value);
}

// The same where the type is known at run time only.
__device__ inline float LoadFloat(DType dtype, const void* base, int64_t index) {
  if (dtype == DType::kF32) return LoadFloat(static_cast<const float*>(base) + index);
  if (dtype == DType::kBF16) return LoadFloat(static_cast<const __nv_bfloat16*>(base) + index);
  return LoadFloat(static_cast<const __half*>(base) + index);
}
__device__ inline void StoreFloat(float value, DType dtype, void* base, int64_t index) {
  if (dtype == DType::kF32) return StoreFloat(value, static_cast<float*>(base) + index);
  if (dtype == DType::kBF16) return StoreFloat(value, static_cast<__nv_bfloat16*>(base) + index);
  StoreFloat(value, static_cast<__half*>(base) + index);
}

// N elements that are loaded at once: by accesses of 16 bytes, or of all of it where it is smaller.
template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T elements[N];
};

// How many elements a thread takes so that the wider of its types fills 16 bytes.
template <typename A, typename B>
inline constexpr int kPackSize = 16 / static_cast<int>(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

template <typename T, int N>
__host__ __device__ inline bool IsPacked(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Pack<T, N>) == 0;
}

// to[i] = from[i] for i < count, else 0. `packed`: `from` is aligned to a Pack.
template <int N, typename T>
__device__ inline void LoadFloats(const T* from, int64_t count, bool packed, float (&to)[N]) {
  if (packed && count >= N) {
    const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = LoadFloat(pack.elements + i);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = i < count ? LoadFloat(from + i) : 0.0f;
}

// to[i] = from[i] for i < count.
template <int N, typename T>
__device__ inline void StoreFloats(const float (&from)[N], int64_t count, bool packed, T* to) {
  if (packed && count >= N) {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) StoreFloat(from[i], pack.elements + i);
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < count) StoreFloat(from[i], to + i);
  }
}

// A CudaMatrix whose element type is known.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;

  explicit Rows(const CudaMatrix& matrix) : data(static_cast<T*>(matrix.data)), stride(matrix.stride) {}
  __device__ T* at(int64_t row) const { return data + row * stride; }
  // Whether every row starts where Packs of N may be read.
  template <int N>
  bool IsPacked() const {
    return runahead::IsPacked<T, N>(data) && stride % N == 0;
  }
};

// Calls function(a null pointer to the element type).
template <typename Function>
cudaError_t ForDType(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kF32:
      return function(static_cast<float*>(nullptr));
    case DType::kBF16:
      return function(static_cast<__nv_bfloat16*>(nullptr));
    case DType::kF16:
      return function(static_cast<__half*>(nullptr));
  }
  return cudaErrorInvalidValue;
}
template <typename Function>
cudaError_t ForDTypes(DType first, DType second, const Function& function) {
  return ForDType(first, [&](auto* a) { return ForDType(second, [&](auto* b) { return function(a, b); }); });
}

// Threads for elementwise kernels: one for each of `packs` of a row (they loop where that is too many), rows along x
// and inside the block.
struct RowTiles {
  dim3 grid;
  dim3 block;

  RowTiles(int64_t rows, int64_t packs) {
    constexpr int64_t kThreads = 256;
    constexpr int64_t kMostInY = 65535;
    int64_t width = 1;
    while (width < packs && width < kThreads) width *= 2;
    const int64_t height = kThreads / width;
    const int64_t chunks = (packs + width - 1) / width;
    grid = dim3(static_cast<unsigned>((rows + height - 1) / height),
                static_cast<unsigned>(chunks < kMostInY ? chunks : kMostInY));
    block = dim3(static_cast<unsigned>(width), static_cast<unsigned>(height));
  }

  __device__ static int64_t Row() { return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; }
  __device__ static int64_t FirstPack() { return static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; }
  __device__ static int64_t PackStep() { return static_cast<int64_t>(gridDim.y) * blockDim.x; }
};

}  // namespace runahead
