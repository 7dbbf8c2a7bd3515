// Random weight matrices of every stored type, and their exact values in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/superblock.h"
#include "kernels/base/weights.h"

namespace runahead {

// The value of an IEEE half.
inline double HalfToDouble(uint16_t h) {
  const int exponent = (h >> 10) & 31, fraction = h & 1023;
  double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) magnitude = fraction == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

// What the f16 scales and minima of blocks are drawn from.
enum class DrawnScales {
  kSensible,   // of magnitudes from 2^-7 to 2^-4
  kAllFinite,  // all of f16 but infinities and NaN, every other one of kEdgeHalves
};
// Zeros, the smallest and the largest subnormal, the smallest normal and the largest half, of either sign.
inline constexpr uint16_t kEdgeHalves[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff,
                                           0x83ff, 0x0400, 0x8400, 0x7bff, 0xfbff};
// NaN, quiet and signalling, and infinities: what a damaged scale may be.
inline constexpr uint16_t kDamagedHalves[] = {0x7e00, 0xfe00, 0x7c01, 0x7c00, 0xfc00};

// Rows of `type` in memory as in a file, with random content.
struct RandomWeights {
  RandomWeights(WeightType type, int64_t rows, int64_t cols, uint32_t seed, DrawnScales scales = DrawnScales::kSensible)
      : type(type), rows(rows), cols(cols) {
    std::mt19937 random(seed);
    bytes.resize(rows * WeightRowBytes(type, cols));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 255);
    const auto half = [&] {
      if (scales == DrawnScales::kSensible) return (random() & 0x83ff) | (8 + random() % 3) << 10;
      if (random() % 2 == 0) return static_cast<decltype(random())>(kEdgeHalves[random() % std::size(kEdgeHalves)]);
      return (random() & 0x83ff) | random() % 31 << 10;
    };
    const size_t block = BlockOf(type).bytes;
    for (size_t i = 0; i < bytes.size(); i += block) {
      std::byte* at = bytes.data() + i;
      if (type == WeightType::kF32 || type == WeightType::kBF16) {
        const float value = std::uniform_real_distribution<float>(-1, 1)(random);
        if (type == WeightType::kF32) std::memcpy(at, &value, 4);
        const BFloat16 rounded = ToBFloat16(value);
        if (type == WeightType::kBF16) std::memcpy(at, &rounded, 2);
      } else {
        PutHalf(at + ScaleAt(), half());
        if (HasMinimum()) PutHalf(at + MinimumAt(), half());
      }
    }
  }

  bool HasMinimum() const { return IsSuperblock(type) ? SuperblockHasMin(type) : BlockOf(type).scales == 2; }
  // Where a block has its f16 scale, and its minimum if there is one.
  int ScaleAt() const { return IsSuperblock(type) ? SuperblockDAt(type) : 0; }
  int MinimumAt() const { return IsSuperblock(type) ? SuperblockMinAt(type) : 2; }
  static void PutHalf(std::byte* at, uint32_t half) {
    const uint16_t h = static_cast<uint16_t>(half);
    std::memcpy(at, &h, 2);
  }
  // The same rows with another scale, or another minimum, in the block that holds column `col` of a row.
  RandomWeights WithHalf(int64_t row, int64_t col, bool minimum, uint16_t half) const {
    RandomWeights changed = *this;
    PutHalf(changed.bytes.data() + (BlockAt(row, col) - bytes.data()) + (minimum ? MinimumAt() : ScaleAt()), half);
    return changed;
  }
  // The block of the file that holds column `col` of a row.
  const std::byte* BlockAt(int64_t row, int64_t col) const {
    const WeightBlock& block = BlockOf(type);
    return bytes.data() + row * WeightRowBytes(type, cols) + col / block.elements * block.bytes;
  }

  double Value(int64_t row, int64_t col) const {
    const std::byte* const at = BlockAt(row, col);
    const auto u16 = [](const std::byte* p) {
      uint16_t value;
      std::memcpy(&value, p, 2);
      return value;
    };
    switch (type) {
      case WeightType::kF32: {
        float value;
        std::memcpy(&value, at, 4);
        return value;
      }
      case WeightType::kF16:
        return HalfToDouble(u16(at));
      case WeightType::kBF16:
        return ToFloat(BFloat16{u16(at)});
      default:
        break;
    }
    if (IsSuperblock(type)) return SuperblockValue(at, col % kSuperblock);
    return HalfToDouble(u16(at)) * Level(row, col) + (HasMinimum() ? HalfToDouble(u16(at + MinimumAt())) : 0.0);
  }

  // What a block of 32 columns multiplies with its scale.
  int Level(int64_t row, int64_t col) const {
    const std::byte* const at = BlockAt(row, col);
    const int i = static_cast<int>(col % 32);
    if (type == WeightType::kQ8_0) return static_cast<int8_t>(at[2 + i]);
    const bool five = type == WeightType::kQ5_0 || type == WeightType::kQ5_1;
    const std::byte* rest = at + BlockOf(type).scale_bytes();
    uint32_t high = 0;
    if (five) {
      std::memcpy(&high, rest, 4);
      rest += 4;
    }
    const int nibble = static_cast<int>(rest[i % 16]) >> (i < 16 ? 0 : 4) & 15;
    if (type == WeightType::kIQ4_NL) return kIq4Levels[nibble];
    const int q = nibble | static_cast<int>(high >> i & 1) << 4;
    return HasMinimum() ? q : q - (five ? 16 : 8);
  }

  // Element e of a superblock; what the parts are is held to the gguf package's by tests/golden.
  double SuperblockValue(const std::byte* superblock, int64_t e) const {
    const auto half = [&](int at) {
      uint16_t value;
      std::memcpy(&value, superblock + at, 2);
      return HalfToDouble(value);
    };
    const uint8_t* const block = reinterpret_cast<const uint8_t*>(superblock);
    const int i = static_cast<int>(e) / SuperblockScaleColumns(type);
    double value = 0;
    VisitSuperblock(type, [&]<WeightType kType>() {
      const int u = SuperblockU<kType>(block, static_cast<int>(e));
      const int level = kType == WeightType::kIQ4_XS ? kIq4Levels[u] : u - SuperblockOffset(kType);
      value = half(SuperblockDAt(kType)) * SuperblockScale<kType>(block, i) * level;
      if (SuperblockHasMin(kType)) value -= half(SuperblockMinAt(kType)) * SuperblockMin<kType>(block, i);
    });
    return value;
  }

  WeightRows Rows() const { return {type, bytes.data(), rows}; }
  WeightSource Source() const { return {nullptr, cols, {Rows()}}; }

  WeightType type;
  int64_t rows, cols;
  std::vector<std::byte> bytes;
};

inline constexpr WeightType kAllWeightTypes[] = {
    WeightType::kF32,  WeightType::kF16,  WeightType::kBF16, WeightType::kQ8_0,   WeightType::kQ4_0,
    WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kIQ4_NL, WeightType::kQ2_K,
    WeightType::kQ3_K, WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K,   WeightType::kIQ4_XS};
// A number of columns that the type can have: `cols`, or that many superblocks' where it has them.
inline int64_t ColsFor(WeightType type, int64_t cols) {
  return IsSuperblock(type) ? (cols + kSuperblock - 1) / kSuperblock * kSuperblock : cols;
}

inline std::vector<float> RandomFloats(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = std::uniform_real_distribution<float>(-scale, scale)(random);
  return values;
}

}  // namespace runahead
