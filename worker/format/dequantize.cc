#include "worker/format/dequantize.h"

#include <cstring>

#include "kernels/base/superblock.h"

namespace runahead {
namespace {

constexpr int kBlock = BlockOf(WeightType::kQ8_0).elements;  // of all quantised types but superblocks

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// The 4-bit value of element j: the low nibbles hold elements 0..15, the high ones 16..31.
int Nibble(const std::byte* nibbles, int j) {
  const int pair = std::to_integer<int>(nibbles[j % 16]);
  return j < 16 ? pair & 15 : pair >> 4;
}

// The same with the fifth bit, which is bit j of `high`.
int FiveBits(const std::byte* nibbles, uint32_t high, int j) {
  return Nibble(nibbles, j) | static_cast<int>(high >> j & 1) << 4;
}

void DequantizeBlock(WeightType type, const std::byte* block, float* out) {
  const float scale = Float16ToFloat(Load<uint16_t>(block));
  switch (type) {
    case WeightType::kQ4_0:
      for (int j = 0; j < kBlock; ++j) out[j] = static_cast<float>(Nibble(block + 2, j) - 8) * scale;
      return;
    case WeightType::kQ4_1: {
      const float minimum = Float16ToFloat(Load<uint16_t>(block + 2));
      for (int j = 0; j < kBlock; ++j) out[j] = static_cast<float>(Nibble(block + 4, j)) * scale + minimum;
      return;
    }
    case WeightType::kQ5_0: {
      const uint32_t high = Load<uint32_t>(block + 2);
      for (int j = 0; j < kBlock; ++j) out[j] = static_cast<float>(FiveBits(block + 6, high, j) - 16) * scale;
      return;
    }
    case WeightType::kQ5_1: {
      const float minimum = Float16ToFloat(Load<uint16_t>(block + 2));
      const uint32_t high = Load<uint32_t>(block + 4);
      for (int j = 0; j < kBlock; ++j) out[j] = static_cast<float>(FiveBits(block + 8, high, j)) * scale + minimum;
      return;
    }
    case WeightType::kIQ4_NL:
      for (int j = 0; j < kBlock; ++j) out[j] = static_cast<float>(kIq4Levels[Nibble(block + 2, j)]) * scale;
      return;
    case WeightType::kQ8_0:
      for (int j = 0; j < kBlock; ++j) out[j] = static_cast<float>(Load<int8_t>(block + 2 + j)) * scale;
      return;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K:
    case WeightType::kIQ4_XS:
      return;  // not in blocks of 32
  }
}

template <WeightType type>
void DequantizeSuperblock(const std::byte* from, float* out) {
  const uint8_t* const block = reinterpret_cast<const uint8_t*>(from);
  const float d = Float16ToFloat(Load<uint16_t>(from + SuperblockDAt(type)));
  const float dmin = SuperblockHasMin(type) ? Float16ToFloat(Load<uint16_t>(from + SuperblockMinAt(type))) : 0.0f;
  for (int e = 0; e < kSuperblock; ++e) {
    const int i = e / SuperblockScaleColumns(type), u = SuperblockU<type>(block, e);
    const int level = BlockOf(type).levels ? kIq4Levels[u] : u - SuperblockOffset(type);
    out[e] = d * static_cast<float>(SuperblockScale<type>(block, i)) * static_cast<float>(level);
    if (SuperblockHasMin(type)) out[e] -= dmin * static_cast<float>(SuperblockMin<type>(block, i));
  }
}

}  // namespace

float Float16ToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 31;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + (127 - 15);
  const uint32_t bits = sign | wide << 23 | mantissa << 13;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

float BFloat16ToFloat(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

void DequantizeRow(WeightType type, const std::byte* row, int64_t n, float* out) {
  switch (type) {
    case WeightType::kF32:
      std::memcpy(out, row, static_cast<size_t>(n) * sizeof(float));
      return;
    case WeightType::kF16:
      for (int64_t i = 0; i < n; ++i) out[i] = Float16ToFloat(Load<uint16_t>(row + 2 * i));
      return;
    case WeightType::kBF16:
      for (int64_t i = 0; i < n; ++i) out[i] = BFloat16ToFloat(Load<uint16_t>(row + 2 * i));
      return;
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
    case WeightType::kQ8_0:
    case WeightType::kIQ4_NL:
      for (int64_t i = 0; i < n; i += kBlock, row += BlockOf(type).bytes) DequantizeBlock(type, row, out + i);
      return;
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K:
    case WeightType::kIQ4_XS:
      return VisitSuperblock(type, [&]<WeightType kType>() {
        for (int64_t i = 0; i < n; i += kSuperblock, row += BlockOf(kType).bytes) {
          DequantizeSuperblock<kType>(row, out + i);
        }
      });
  }
}

}  // namespace runahead
