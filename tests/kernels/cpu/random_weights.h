// Random weight matrices of every stored type, and their exact values in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/superblock.h"
#include "kernels/base/weights.h"

namespace runahead {

// The value of an IEEE half.
inline double HalfToDouble(uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const double magnitude = exponent == 0 ? std::ldexp(h & 1023, -24) : std::ldexp(1024 + (h & 1023), exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

// Rows of `type` in memory as in a file, with random content of magnitude about `scale`.
struct RandomWeights {
  RandomWeights(WeightType type, int64_t rows, int64_t cols, uint32_t seed) : type(type), rows(rows), cols(cols) {
    std::mt19937 random(seed);
    bytes.resize(rows * WeightRowBytes(type, cols));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 255);
    // Scales (and floats) must be finite and of a sensible size.
    const auto half = [&](std::byte* at) {
      const uint16_t h = static_cast<uint16_t>((random() & 0x83ff) | (8 + random() % 3) << 10);
      std::memcpy(at, &h, 2);
    };
    const size_t block = BlockOf(type).bytes;
    for (size_t i = 0; i < bytes.size(); i += block) {
      std::byte* at = bytes.data() + i;
      if (type == WeightType::kF32 || type == WeightType::kBF16) {
        const float value = std::uniform_real_distribution<float>(-1, 1)(random);
        if (type == WeightType::kF32) std::memcpy(at, &value, 4);
        const BFloat16 rounded = ToBFloat16(value);
        if (type == WeightType::kBF16) std::memcpy(at, &rounded, 2);
      } else if (IsSuperblock(type)) {
        half(at + SuperblockDAt(type));
        if (HasMinimum()) half(at + SuperblockMinAt(type));
      } else {
        half(at);
        if (HasMinimum()) half(at + 2);
      }
    }
  }

  bool HasMinimum() const { return IsSuperblock(type) ? SuperblockHasMin(type) : BlockOf(type).scales == 2; }

  double Value(int64_t row, int64_t col) const {
    const std::byte* at = bytes.data() + row * WeightRowBytes(type, cols);
    const auto u16 = [](const std::byte* p) {
      uint16_t value;
      std::memcpy(&value, p, 2);
      return value;
    };
    switch (type) {
      case WeightType::kF32: {
        float value;
        std::memcpy(&value, at + col * 4, 4);
        return value;
      }
      case WeightType::kF16:
        return HalfToDouble(u16(at + col * 2));
      case WeightType::kBF16:
        return ToFloat(BFloat16{u16(at + col * 2)});
      default:
        break;
    }
    if (IsSuperblock(type)) return SuperblockValue(at + col / kSuperblock * BlockOf(type).bytes, col % kSuperblock);
    at += col / 32 * BlockOf(type).bytes;
    const int i = static_cast<int>(col % 32);
    const double d = HalfToDouble(u16(at));
    if (type == WeightType::kIQ4_NL) return d * kIq4Levels[static_cast<int>(at[2 + i % 16]) >> (i < 16 ? 0 : 4) & 15];
    if (type == WeightType::kQ8_0) return d * static_cast<int8_t>(at[2 + i]);
    const bool five = type == WeightType::kQ5_0 || type == WeightType::kQ5_1;
    const std::byte* rest = at + (HasMinimum() ? 4 : 2);
    uint32_t high = 0;
    if (five) {
      std::memcpy(&high, rest, 4);
      rest += 4;
    }
    const int nibble = static_cast<int>(rest[i % 16]) >> (i < 16 ? 0 : 4) & 15;
    const int q = nibble | static_cast<int>(high >> i & 1) << 4;
    if (HasMinimum()) return d * q + HalfToDouble(u16(at + 2));
    return d * (q - (five ? 16 : 8));
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
