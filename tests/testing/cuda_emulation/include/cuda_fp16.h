// Half precision of CUDA, as far as the emulation needs it.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

struct __half {
  uint16_t bits;
};
typedef __half half;

inline float __half2float(__half value) {
  const int exponent = (value.bits >> 10) & 31;
  const int mantissa = value.bits & 1023;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | static_cast<uint32_t>(mantissa) << 13);
  const float magnitude = exponent == 0 ? ldexpf(static_cast<float>(mantissa), -24)
                                        : ldexpf(static_cast<float>(mantissa + 1024), exponent - 25);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// To nearest, ties to even; too large becomes infinite, a NaN becomes 0x7fff, as CUDA's.
inline __half __float2half_rn(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = fabsf(value);
  if (isnan(value)) return {0x7fff};
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00u)};
  // Below 2^-14 all halfs are multiples of 2^-24; 0.5 has a last place of 2^-24.
  if (magnitude < 0x1p-14f) {
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(magnitude + 0.5f) - 0x3f000000u))};
  }
  const uint32_t rebased = (bits & 0x7fffffffu) - (112u << 23);
  return {static_cast<uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13))};
}
inline __half __float2half(float value) {
  return __float2half_rn(value);
}

inline unsigned short __half_as_ushort(__half value) {
  return value.bits;
}
inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
