#include "kernels/base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace runahead {
namespace {

// The value of the bits, by the definition.
double Defined(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? HUGE_VAL : std::nan("");
  return (bits & 0x8000) != 0 ? -value : value;
}

TEST(Float16, EveryValueIsWhatItsBitsSayAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const double defined = Defined(half.bits);
    const float value = ToFloat(half);
    if (std::isnan(defined)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(value)))) << bits;
      continue;
    }
    ASSERT_EQ(value, defined) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(defined)) << bits;
    ASSERT_EQ(ToFloat16(value).bits, bits);
  }
}

TEST(Float16, RoundsToTheNearestAndTiesToEven) {
  // Between every two neighbours: the middle goes to the even one, what is beside it to the nearer one.
  for (uint16_t bits = 0; bits < 0x7c00; ++bits) {
    const uint16_t next = static_cast<uint16_t>(bits + 1);
    const double upper = next == 0x7c00 ? 65536.0 : Defined(next);  // beyond the largest number: as if one more came
    const float middle = static_cast<float>((Defined(bits) + upper) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      const uint16_t negative = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(ToFloat16(sign * middle).bits, negative | (bits % 2 == 0 ? bits : next)) << middle;
      ASSERT_EQ(ToFloat16(sign * std::nextafter(middle, 0.0f)).bits, negative | bits) << middle;
      ASSERT_EQ(ToFloat16(sign * std::nextafter(middle, 1e9f)).bits, negative | next) << middle;
    }
  }
}

TEST(Float16, WhatIsTooLargeIsInfiniteAndWhatIsTooSmallIsZero) {
  EXPECT_EQ(ToFloat16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-1e38f).bits, 0xfc00);
  EXPECT_EQ(ToFloat16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(ToFloat16(-1e-30f).bits, 0x8000);
  EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(BFloat16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(ToBFloat16(1.00390625f).bits, 0x3f80);
  EXPECT_EQ(ToBFloat16(1.01171875f).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace runahead
