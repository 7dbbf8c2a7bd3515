// Element types of activations, KV and weights, and bf16/f16 conversion for the host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace runahead {

enum class DType { kF32, kBF16, kF16 };

constexpr size_t DTypeSize(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}
constexpr std::string_view DTypeName(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kBF16 ? "bf16" : "f16";
}

// bfloat16 as stored. Conversion from float rounds to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  uint16_t bits = 0;
};

inline float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace runahead
