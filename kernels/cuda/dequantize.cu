#include <cstring>

#include "kernels/base/superblock.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

template <WeightType type>
constexpr int kBlockBytes = BlockOf(type).bytes;

constexpr int kPart = 8;  // elements that a thread makes: a quarter of a block of 32

// Where the parts of a stored row lie. The elements of a part begin at a multiple of `element_bytes` * kPart behind the
// head of its block; the plain types are one block without a head.
struct StoredShape {
  WeightType type;
  int64_t row_bytes;
  int access;  // bytes that may be loaded at once at whatever a part begins with: 1, 2, 4 or 16
};

// N bytes as little-endian words, by accesses of `access` bytes.
template <int N>
__device__ void LoadBytes(const uint8_t* from, int access, uint32_t (&to)[(N + 3) / 4]) {
  if (N % 16 == 0 && access == 16) {
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      const Pack<uint32_t, 4> words = reinterpret_cast<const Pack<uint32_t, 4>*>(from)[i];
      for (int j = 0; j < 4; ++j) to[4 * i + j] = words.elements[j];
    }
  } else if (N % 4 == 0 && access >= 4) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) to[i] = reinterpret_cast<const uint32_t*>(from)[i];
  } else if (access >= 2) {
#pragma unroll
    for (int i = 0; i < (N + 3) / 4; ++i) to[i] = 0;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      to[i / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(from)[i]) << (16 * (i % 2));
    }
  } else {
#pragma unroll
    for (int i = 0; i < (N + 3) / 4; ++i) to[i] = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) to[i / 4] |= static_cast<uint32_t>(from[i]) << (8 * (i % 4));
  }
}

template <typename T>
__device__ float FloatOf(uint32_t bits) {
  const uint16_t low = static_cast<uint16_t>(bits);
  T value;
  memcpy(&value, &low, sizeof(value));
  return LoadFloat(&value);
}

__device__ uint32_t ByteOf(const uint32_t* words, int i) {
  return words[i / 4] >> (8 * (i % 4)) & 0xffu;
}

__device__ void LoadF32(const uint8_t* from, int count, int access, float (&to)[kPart]) {
  uint32_t words[kPart];
  if (count >= kPart) {
    LoadBytes<4 * kPart>(from, access, words);
    memcpy(to, words, sizeof(to));
    return;
  }
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    uint32_t word[1] = {0};
    if (i < count) LoadBytes<4>(from + 4 * i, access, word);
    memcpy(&to[i], word, sizeof(float));
  }
}

template <typename T>
__device__ void LoadHalves(const uint8_t* from, int count, int access, float (&to)[kPart]) {
  uint32_t words[kPart / 2];
  if (count >= kPart) {
    LoadBytes<2 * kPart>(from, access, words);
#pragma unroll
    for (int i = 0; i < kPart; ++i) to[i] = FloatOf<T>(words[i / 2] >> (16 * (i % 2)));
    return;
  }
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    uint32_t word[1] = {0};
    if (i < count) LoadBytes<2>(from + 2 * i, access, word);
    to[i] = FloatOf<T>(word[0]);
  }
}

__device__ void LoadQ8(const uint8_t* block, int part, int access, float (&to)[kPart]) {
  uint32_t scale[1];
  uint32_t bytes[kPart / 4];
  LoadBytes<2>(block, access, scale);
  LoadBytes<kPart>(block + 2 + kPart * part, access, bytes);
  const float d = FloatOf<__half>(scale[0]);
#pragma unroll
  for (int i = 0; i < kPart; ++i) to[i] = static_cast<float>(static_cast<int8_t>(ByteOf(bytes, i))) * d;
}

// The types of four or five bits: {f16 d, f16 m where kMinimum, u32 high bits where kFifth, nibbles}. The product of d
// and a value of five bits is exact in f32, so that it makes no difference whether the sum is fused with it.
template <bool kMinimum, bool kFifth>
__device__ void LoadQ4Or5(const uint8_t* block, int part, int access, float (&to)[kPart]) {
  constexpr int kHead = kMinimum ? 4 : 2;
  constexpr int kCentre = kMinimum ? 0 : kFifth ? 16 : 8;
  uint32_t head[1];
  uint32_t high[1] = {0};
  uint32_t nibbles[kPart / 4];
  LoadBytes<kHead>(block, access, head);
  if (kFifth) LoadBytes<4>(block + kHead, access, high);
  LoadBytes<kPart>(block + kHead + (kFifth ? 4 : 0) + kPart * (part % 2), access, nibbles);
  const float d = FloatOf<__half>(head[0]);
  const float m = kMinimum ? FloatOf<__half>(head[0] >> 16) : 0.0f;
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    const uint32_t nibble = ByteOf(nibbles, i) >> (part < 2 ? 0 : 4) & 15u;
    const uint32_t fifth = (high[0] >> (kPart * part + i) & 1u) << 4;
    const float product = static_cast<float>(static_cast<int>(nibble | fifth) - kCentre) * d;
    to[i] = kMinimum ? product + m : product;
  }
}

// kIq4Levels[i], which a device cannot index.
__device__ int Iq4Level(uint32_t i) {
  constexpr auto kPacked = [](int first) {
    uint64_t bytes = 0;
    for (int j = 7; j >= 0; --j) bytes = bytes << 8 | static_cast<uint8_t>(kIq4Levels[first + j]);
    return bytes;
  };
  constexpr uint64_t kLow = kPacked(0), kHigh = kPacked(8);
  return static_cast<int8_t>((i < 8 ? kLow : kHigh) >> (8 * (i % 8)));
}

// IQ4_NL: as Q4_0, with levels. Bytes of one block, whatever access its place allows.
__device__ void LoadIq4Nl(const uint8_t* block, int part, int access, float (&to)[kPart]) {
  uint32_t head[1];
  uint32_t nibbles[kPart / 4];
  LoadBytes<2>(block, access, head);
  LoadBytes<kPart>(block + 2 + kPart * (part % 2), access, nibbles);
  const float d = FloatOf<__half>(head[0]);
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    to[i] = static_cast<float>(Iq4Level(ByteOf(nibbles, i) >> (part < 2 ? 0 : 4) & 15u)) * d;
  }
}

// Elements of a superblock share their scale with seven neighbours at least. Products are exact in f32, and one
// difference rounds, whether or not it is fused with one of them.
template <WeightType type>
__device__ void LoadSuperblock(const uint8_t* row, int64_t part, float (&to)[kPart]) {
  constexpr int kParts = kSuperblock / kPart;
  const uint8_t* const block = row + kBlockBytes<type> * (part / kParts);
  const int first = static_cast<int>(part % kParts) * kPart, i = first / SuperblockScaleColumns(type);
  constexpr int kD = SuperblockDAt(type), kMin = SuperblockMinAt(type);
  const float d = FloatOf<__half>(block[kD] | static_cast<uint32_t>(block[kD + 1]) << 8);
  const float dmin = kMin == 0 ? 0.0f : FloatOf<__half>(block[kMin] | static_cast<uint32_t>(block[kMin + 1]) << 8);
  const float scale = d * static_cast<float>(SuperblockScale<type>(block, i));
  const float minimum = dmin * static_cast<float>(SuperblockMin<type>(block, i));
#pragma unroll
  for (int j = 0; j < kPart; ++j) {
    const int u = SuperblockU<type>(block, first + j);
    const int level = type == WeightType::kIQ4_XS ? Iq4Level(u) : u - SuperblockOffset(type);
    to[j] = kMin == 0 ? scale * static_cast<float>(level) : scale * static_cast<float>(level) - minimum;
  }
}

// Elements kPart * part .. + count of a row.
__device__ void LoadPart(const StoredShape& shape, const uint8_t* row, int64_t part, int count, float (&to)[kPart]) {
  const int64_t block = part / 4;
  const int in_block = static_cast<int>(part % 4);
  switch (shape.type) {
    case WeightType::kF32:
      return LoadF32(row + 4 * kPart * part, count, shape.access, to);
    case WeightType::kF16:
      return LoadHalves<__half>(row + 2 * kPart * part, count, shape.access, to);
    case WeightType::kBF16:
      return LoadHalves<__nv_bfloat16>(row + 2 * kPart * part, count, shape.access, to);
    case WeightType::kQ8_0:
      return LoadQ8(row + kBlockBytes<WeightType::kQ8_0> * block, in_block, shape.access, to);
    case WeightType::kQ4_0:
      return LoadQ4Or5<false, false>(row + kBlockBytes<WeightType::kQ4_0> * block, in_block, shape.access, to);
    case WeightType::kQ4_1:
      return LoadQ4Or5<true, false>(row + kBlockBytes<WeightType::kQ4_1> * block, in_block, shape.access, to);
    case WeightType::kQ5_0:
      return LoadQ4Or5<false, true>(row + kBlockBytes<WeightType::kQ5_0> * block, in_block, shape.access, to);
    case WeightType::kQ5_1:
      return LoadQ4Or5<true, true>(row + kBlockBytes<WeightType::kQ5_1> * block, in_block, shape.access, to);
    case WeightType::kIQ4_NL:
      return LoadIq4Nl(row + kBlockBytes<WeightType::kIQ4_NL> * block, in_block, shape.access, to);
    case WeightType::kQ2_K:
      return LoadSuperblock<WeightType::kQ2_K>(row, part, to);
    case WeightType::kQ3_K:
      return LoadSuperblock<WeightType::kQ3_K>(row, part, to);
    case WeightType::kQ4_K:
      return LoadSuperblock<WeightType::kQ4_K>(row, part, to);
    case WeightType::kQ5_K:
      return LoadSuperblock<WeightType::kQ5_K>(row, part, to);
    case WeightType::kQ6_K:
      return LoadSuperblock<WeightType::kQ6_K>(row, part, to);
    case WeightType::kIQ4_XS:
      return LoadSuperblock<WeightType::kIQ4_XS>(row, part, to);
  }
}

template <typename Out>
__global__ void DequantizeKernel(StoredShape shape, const uint8_t* stored, Rows<Out> out, int64_t rows, int64_t cols,
                                 bool out_packed) {
  const int64_t row = RowTiles::Row();
  if (row >= rows) return;
  const uint8_t* from = stored + row * shape.row_bytes;
  Out* to = out.at(row);
  for (int64_t part = RowTiles::FirstPack(); kPart * part < cols; part += RowTiles::PackStep()) {
    const int64_t left = cols - kPart * part;
    float values[kPart];
    LoadPart(shape, from, part, static_cast<int>(left < kPart ? left : kPart), values);
    StoreFloats<kPart>(values, left, out_packed, to + kPart * part);
  }
}

StoredShape ShapeOf(WeightType type, const std::byte* stored, int64_t cols) {
  const int64_t row_bytes = static_cast<int64_t>(WeightRowBytes(type, cols));
  // What all addresses that a part begins with are multiples of: the lowest bit set in any of these.
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(stored) | static_cast<uint64_t>(IsPlain(type) ? row_bytes : BlockOf(type).bytes);
  const int access = bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
  return {.type = type, .row_bytes = row_bytes, .access = access};
}

}  // namespace

cudaError_t LaunchDequantize(WeightType type, const std::byte* stored, const CudaMatrix& out, cudaStream_t stream) {
  if (out.rows == 0 || out.cols == 0) return cudaSuccess;
  const StoredShape shape = ShapeOf(type, stored, out.cols);
  const RowTiles tiles(out.rows, (out.cols + kPart - 1) / kPart);
  return ForDType(out.dtype, [&]<typename Out>(Out*) {
    const Rows<Out> to(out);
    return Launch(DequantizeKernel<Out>, tiles.grid, tiles.block, stream, shape,
                  reinterpret_cast<const uint8_t*>(stored), to, out.rows, out.cols, to.template IsPacked<kPart>());
  });
}

}  // namespace runahead
