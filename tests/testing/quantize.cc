#include "tests/testing/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "tests/testing/quantize_superblock.h"
#include "worker/format/dequantize.h"

namespace runahead {
namespace {

constexpr size_t kBlock = 32;

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Sixteen bytes: elements 0..15 in the low nibbles, 16..31 in the high ones. The fifth bits are dropped.
void AppendNibbles(std::string& out, const int* levels) {
  for (size_t j = 0; j < kBlock / 2; ++j) {
    out.push_back(static_cast<char>((levels[j] & 15) | (levels[j + kBlock / 2] & 15) << 4));
  }
}

uint32_t FifthBits(const int* levels) {
  uint32_t bits = 0;
  for (size_t j = 0; j < kBlock; ++j) bits |= static_cast<uint32_t>(levels[j] >> 4 & 1) << j;
  return bits;
}

int Level(float value, float inverse, float offset, int top) {
  return std::clamp(static_cast<int>(std::lround(value * inverse + offset)), 0, top);
}

// value = scale * (level - 2^(bits-1)): the element of largest magnitude lands on the level of largest magnitude.
void AppendSigned(std::string& out, const float* x, int bits) {
  const float* largest = std::max_element(x, x + kBlock, [](float a, float b) { return std::abs(a) < std::abs(b); });
  const int half = 1 << (bits - 1);
  const uint16_t stored = FloatToFloat16(*largest / static_cast<float>(-half));
  const float scale = Float16ToFloat(stored);
  int levels[kBlock];
  for (size_t j = 0; j < kBlock; ++j) {
    levels[j] = Level(x[j], scale != 0 ? 1 / scale : 0, static_cast<float>(half), 2 * half - 1);
  }
  Append(out, stored);
  if (bits == 5) Append(out, FifthBits(levels));
  AppendNibbles(out, levels);
}

// value = scale * level + minimum.
void AppendAffine(std::string& out, const float* x, int bits) {
  const auto [least, most] = std::minmax_element(x, x + kBlock);
  const int top = (1 << bits) - 1;
  const uint16_t stored_minimum = FloatToFloat16(*least);
  const float minimum = Float16ToFloat(stored_minimum);
  const uint16_t stored_scale = FloatToFloat16((*most - minimum) / static_cast<float>(top));
  const float scale = Float16ToFloat(stored_scale);
  int levels[kBlock];
  for (size_t j = 0; j < kBlock; ++j) levels[j] = Level(x[j] - minimum, scale != 0 ? 1 / scale : 0, 0, top);
  Append(out, stored_scale);
  Append(out, stored_minimum);
  if (bits == 5) Append(out, FifthBits(levels));
  AppendNibbles(out, levels);
}

void AppendQ8(std::string& out, const float* x) {
  float largest = 0;
  for (size_t j = 0; j < kBlock; ++j) largest = std::max(largest, std::abs(x[j]));
  const uint16_t stored = FloatToFloat16(largest / 127);
  const float scale = Float16ToFloat(stored);
  Append(out, stored);
  for (size_t j = 0; j < kBlock; ++j) {
    const long level = scale != 0 ? std::lround(x[j] / scale) : 0;
    out.push_back(static_cast<char>(std::clamp(level, -127L, 127L)));
  }
}

void AppendBlock(std::string& out, WeightType type, const float* x) {
  switch (type) {
    case WeightType::kQ4_0:
      return AppendSigned(out, x, 4);
    case WeightType::kQ4_1:
      return AppendAffine(out, x, 4);
    case WeightType::kQ5_0:
      return AppendSigned(out, x, 5);
    case WeightType::kQ5_1:
      return AppendAffine(out, x, 5);
    case WeightType::kQ8_0:
      return AppendQ8(out, x);
    case WeightType::kF32:
      return Append(out, *x);
    case WeightType::kF16:
      return Append(out, FloatToFloat16(*x));
    case WeightType::kBF16:
      return Append(out, FloatToBFloat16(*x));
    case WeightType::kIQ4_NL:
      return AppendIq4Nl(out, x);
    default:
      return AppendSuperblock(out, type, x);
  }
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// `bits` without its lowest `drop` bits, rounded to nearest, ties to even.
uint32_t RoundAway(uint32_t bits, int drop) {
  const uint32_t half = 1u << (drop - 1);
  return (bits + half - 1 + (bits >> drop & 1)) >> drop;
}

}  // namespace

uint16_t FloatToFloat16(float value) {
  const uint32_t sign = BitsOf(value) >> 16 & 0x8000;
  const uint32_t magnitude = BitsOf(value) & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);  // NaN
  if (magnitude < 0x38800000) {  // below 2^-14: a subnormal, in steps of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::abs(value) * 0x1p24f)));
  }
  const uint32_t rounded = RoundAway(magnitude - ((127u - 15u) << 23), 13);
  return static_cast<uint16_t>(sign | std::min(rounded, 0x7c00u));
}

uint16_t FloatToBFloat16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>(RoundAway(BitsOf(value), 16));
}

std::string Quantize(WeightType type, absl::Span<const float> values) {
  std::string out;
  out.reserve(WeightRowBytes(type, static_cast<int64_t>(values.size())));
  const size_t step = static_cast<size_t>(BlockOf(type).elements);
  for (size_t i = 0; i < values.size(); i += step) AppendBlock(out, type, values.data() + i);
  return out;
}

}  // namespace runahead
