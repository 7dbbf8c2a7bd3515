#include <cstring>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kPack = 4;  // elements of a thread: a group is 8, 16 or 32 threads of one warp
constexpr int kThreads = 256;
constexpr float kMostF16 = 65504.0f;
constexpr uint16_t kNan16 = 0x7e00;

struct QuantShape {
  int64_t packs;  // of a row
  int64_t all;    // packs of all rows
  int64_t row_bytes;
  int group_packs;
  int group_bytes;
  int bits;
  bool packed;  // the elements

  QuantShape(const CudaMatrix& rows, const KvQuant& quant, bool packed)
      : packs(rows.cols / kPack),
        all(rows.rows * packs),
        row_bytes(static_cast<int64_t>(KvQuantRowBytes(rows.cols, quant))),
        group_packs(quant.group / kPack),
        group_bytes(static_cast<int>(KvQuantGroupBytes(quant))),
        bits(quant.bits),
        packed(packed) {}
  dim3 grid() const { return dim3(static_cast<unsigned>((all + kThreads - 1) / kThreads)); }
  // Offset of the group that holds pack `pack` of row `row`.
  __device__ int64_t Group(int64_t row, int64_t pack) const {
    return row * row_bytes + pack / group_packs * group_bytes;
  }
};

// What a group is quantised with, as stored: the scale, then the minimum.
struct Head {
  uint16_t scale;
  uint16_t minimum;
};
static_assert(sizeof(Head) == 4);

__device__ uint16_t HalfBits(float value) {
  __half half;
  StoreFloat(value, &half);
  uint16_t bits;
  memcpy(&bits, &half, sizeof(bits));
  return bits;
}
__device__ float HalfValue(uint16_t bits) {
  __half half;
  memcpy(&half, &bits, sizeof(half));
  return LoadFloat(&half);
}

// Of the group that the thread has four values of.
__device__ Head MakeHead(const float (&values)[kPack], const QuantShape& shape) {
  float least = kMostF16;
  float most = -kMostF16;
  int finite = 1;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    finite = finite != 0 && fabsf(values[i]) <= 3.402823466e38f;
    least = values[i] < least ? values[i] : least;
    most = values[i] > most ? values[i] : most;
  }
  for (int lanes = shape.group_packs / 2; lanes > 0; lanes /= 2) {
    least = fminf(least, ShuffleXor(least, lanes));
    most = fmaxf(most, ShuffleXor(most, lanes));
    finite &= ShuffleXor(finite, lanes);
  }
  if (finite == 0) return {kNan16, 0};
  least = fmaxf(least, -kMostF16);
  most = fminf(most, kMostF16);
  return {HalfBits((most - least) / static_cast<float>((1 << shape.bits) - 1)), HalfBits(least)};
}

__device__ uint32_t CodeOf(float value, float scale, float minimum, int bits) {
  if (!(scale > 0.0f)) return 0;  // all the same, or NaN
  const float steps = rintf((value - minimum) / scale);
  return static_cast<uint32_t>(fminf(fmaxf(steps, 0.0f), static_cast<float>((1 << bits) - 1)));
}

template <typename T>
__global__ void QuantizeKvKernel(Rows<T> rows, std::byte* out, QuantShape shape) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool active = index < shape.all;  // no thread leaves: its warp meets in shuffles
  const int64_t row = active ? index / shape.packs : 0;
  const int64_t pack = active ? index % shape.packs : 0;
  float values[kPack];
  LoadFloats<kPack>(rows.at(row) + kPack * pack, active ? kPack : 0, shape.packed, values);
  const Head head = MakeHead(values, shape);
  if (!active) return;
  std::byte* group = out + shape.Group(row, pack);
  const int at = static_cast<int>(pack % shape.group_packs);
  if (at == 0) *reinterpret_cast<uint32_t*>(group) = head.scale | static_cast<uint32_t>(head.minimum) << 16;
  const float scale = HalfValue(head.scale);
  const float minimum = HalfValue(head.minimum);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) codes |= CodeOf(values[i], scale, minimum, shape.bits) << (shape.bits * i);
  if (shape.bits == 4) {
    reinterpret_cast<uint16_t*>(group + sizeof(Head))[at] = static_cast<uint16_t>(codes);
  } else {
    reinterpret_cast<uint32_t*>(group + sizeof(Head))[at] = codes;
  }
}

template <typename T>
__global__ void DequantizeKvKernel(const std::byte* from, Rows<T> out, QuantShape shape) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= shape.all) return;
  const int64_t row = index / shape.packs;
  const int64_t pack = index % shape.packs;
  const std::byte* group = from + shape.Group(row, pack);
  const int at = static_cast<int>(pack % shape.group_packs);
  const uint32_t head = *reinterpret_cast<const uint32_t*>(group);
  const float scale = HalfValue(static_cast<uint16_t>(head));
  const float minimum = HalfValue(static_cast<uint16_t>(head >> 16));
  const uint32_t codes = shape.bits == 4 ? reinterpret_cast<const uint16_t*>(group + sizeof(Head))[at]
                                         : reinterpret_cast<const uint32_t*>(group + sizeof(Head))[at];
  float values[kPack];
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const uint32_t code = codes >> (shape.bits * i) & ((1u << shape.bits) - 1);
    values[i] = minimum + static_cast<float>(code) * scale;  // the product is exact: fused or not is the same
  }
  StoreFloats<kPack>(values, kPack, shape.packed, out.at(row) + kPack * pack);
}

// Codes of four values next to each other, of 8 or of 16 bits.
__device__ uint64_t PackCodes(const int (&codes)[kPack], int bits) {
  uint64_t packed = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    packed |= (static_cast<uint64_t>(codes[i]) & ((uint64_t{1} << bits) - 1)) << (bits * i);
  }
  return packed;
}

// Symmetrically: the head of a group is its scale, an f32.
template <typename T>
__global__ void QuantizeSymmetricKernel(Rows<T> rows, std::byte* out, QuantShape shape) {
  constexpr float kSmallest = 7.888609052210118e-31f;  // 2^-100
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool active = index < shape.all;  // no thread leaves: its warp meets in shuffles
  const int64_t row = active ? index / shape.packs : 0;
  const int64_t pack = active ? index % shape.packs : 0;
  float values[kPack];
  LoadFloats<kPack>(rows.at(row) + kPack * pack, active ? kPack : 0, shape.packed, values);
  float largest = 0.0f;
  int finite = 1;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    finite = finite != 0 && fabsf(values[i]) <= 3.402823466e38f;
    largest = fmaxf(largest, fabsf(values[i]));
  }
  for (int lanes = shape.group_packs / 2; lanes > 0; lanes /= 2) {
    largest = fmaxf(largest, ShuffleXor(largest, lanes));
    finite &= ShuffleXor(finite, lanes);
  }
  if (!active) return;
  const float most = static_cast<float>((1 << (shape.bits - 1)) - 1);
  const bool zero = finite == 0 || largest < kSmallest;
  const float factor = zero ? 0.0f : most / largest;
  const float scale = finite == 0 ? HalfValue(kNan16) : zero ? 0.0f : largest / most;
  std::byte* group = out + shape.Group(row, pack);
  const int at = static_cast<int>(pack % shape.group_packs);
  if (at == 0) *reinterpret_cast<float*>(group) = scale;
  int codes[kPack];
#pragma unroll
  for (int i = 0; i < kPack; ++i) codes[i] = zero ? 0 : static_cast<int>(rintf(values[i] * factor));
  const uint64_t packed = PackCodes(codes, shape.bits);
  uint32_t* to = reinterpret_cast<uint32_t*>(group + sizeof(float)) + at * shape.bits / 8;
  to[0] = static_cast<uint32_t>(packed);
  if (shape.bits == 16) to[1] = static_cast<uint32_t>(packed >> 32);
}

template <typename T>
__global__ void DequantizeSymmetricKernel(const std::byte* from, Rows<T> out, QuantShape shape) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= shape.all) return;
  const int64_t row = index / shape.packs;
  const int64_t pack = index % shape.packs;
  const std::byte* group = from + shape.Group(row, pack);
  const int at = static_cast<int>(pack % shape.group_packs);
  const float scale = *reinterpret_cast<const float*>(group);
  const uint32_t* codes = reinterpret_cast<const uint32_t*>(group + sizeof(float)) + at * shape.bits / 8;
  float values[kPack];
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const int code = shape.bits == 8 ? static_cast<int8_t>(codes[0] >> (8 * i))
                                     : static_cast<int16_t>(codes[i / 2] >> (16 * (i % 2)));
    values[i] = static_cast<float>(code) * scale;
  }
  StoreFloats<kPack>(values, kPack, shape.packed, out.at(row) + kPack * pack);
}

}  // namespace

cudaError_t LaunchQuantizeKv(const CudaMatrix& rows, const KvQuant& quant, std::byte* out, cudaStream_t stream) {
  if (rows.rows == 0 || rows.cols == 0) return cudaSuccess;
  return ForDType(rows.dtype, [&]<typename T>(T*) {
    const Rows<T> from(rows);
    const QuantShape shape(rows, quant, from.template IsPacked<kPack>());
    const auto kernel = quant.symmetric ? QuantizeSymmetricKernel<T> : QuantizeKvKernel<T>;
    return Launch(kernel, shape.grid(), dim3(kThreads), stream, from, out, shape);
  });
}

cudaError_t LaunchDequantizeKv(const std::byte* from, const KvQuant& quant, const CudaMatrix& out,
                               cudaStream_t stream) {
  if (out.rows == 0 || out.cols == 0) return cudaSuccess;
  return ForDType(out.dtype, [&]<typename T>(T*) {
    const Rows<T> to(out);
    const QuantShape shape(out, quant, to.template IsPacked<kPack>());
    const auto kernel = quant.symmetric ? DequantizeSymmetricKernel<T> : DequantizeKvKernel<T>;
    return Launch(kernel, shape.grid(), dim3(kThreads), stream, from, to, shape);
  });
}

}  // namespace runahead
