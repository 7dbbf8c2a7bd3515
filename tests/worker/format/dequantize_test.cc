#include "worker/format/dequantize.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/quantize.h"

namespace runahead {
namespace {

const std::byte* BytesOf(const std::string& text) {
  return reinterpret_cast<const std::byte*>(text.data());
}

std::vector<float> Dequantized(WeightType type, const std::string& bytes, int64_t n) {
  EXPECT_EQ(bytes.size(), WeightRowBytes(type, n));
  std::vector<float> out(static_cast<size_t>(n), 99);
  DequantizeRow(type, BytesOf(bytes), n, out.data());
  return out;
}

TEST(Float16, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = Float16ToFloat(static_cast<uint16_t>(half));
    if ((half & 0x7c00) == 0x7c00 && (half & 0x3ff) != 0) {
      EXPECT_TRUE(std::isnan(value)) << half;
    } else {
      EXPECT_EQ(FloatToFloat16(value), half);
    }
  }
}

TEST(Float16, KnownValues) {
  EXPECT_EQ(Float16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(Float16ToFloat(0xc000), -2.0f);
  EXPECT_EQ(Float16ToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(Float16ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(Float16ToFloat(0x0400), 0x1p-14f);
  EXPECT_EQ(Float16ToFloat(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(Float16ToFloat(0x8000)));
}

TEST(BFloat16, KnownValues) {
  EXPECT_EQ(BFloat16ToFloat(0x3f80), 1.0f);
  EXPECT_EQ(BFloat16ToFloat(0xc040), -3.0f);
  EXPECT_EQ(FloatToBFloat16(1.00390625f), 0x3f80);  // a tie goes to even
  EXPECT_EQ(FloatToBFloat16(1.01171875f), 0x3f82);
}

// One block of every type, written out by hand from the format's description.
TEST(DequantizeRow, BlocksByHand) {
  const std::string two = {'\x00', '\x40'};    // 2.0
  const std::string minus = {'\x00', '\xbc'};  // -1.0
  std::string nibbles(16, '\x00');
  nibbles[0] = '\xf1';                                         // element 0: 1, element 16: 15
  nibbles[15] = '\x2c';                                        // element 15: 12, element 31: 2
  const std::string fifth = {'\x01', '\x00', '\x00', '\x80'};  // elements 0 and 31

  std::vector<float> out = Dequantized(WeightType::kQ4_0, two + nibbles, 32);
  EXPECT_EQ(out[0], -14);
  EXPECT_EQ(out[16], 14);
  EXPECT_EQ(out[15], 8);
  EXPECT_EQ(out[31], -12);
  EXPECT_EQ(out[1], -16);

  out = Dequantized(WeightType::kQ4_1, two + minus + nibbles, 32);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[16], 29);
  EXPECT_EQ(out[31], 3);
  EXPECT_EQ(out[1], -1);

  out = Dequantized(WeightType::kQ5_0, two + fifth + nibbles, 32);
  EXPECT_EQ(out[0], 2);
  EXPECT_EQ(out[16], -2);
  EXPECT_EQ(out[31], 4);
  EXPECT_EQ(out[1], -32);

  out = Dequantized(WeightType::kQ5_1, two + minus + fifth + nibbles, 32);
  EXPECT_EQ(out[0], 33);
  EXPECT_EQ(out[16], 29);
  EXPECT_EQ(out[31], 35);
  EXPECT_EQ(out[1], -1);

  std::string bytes(32, '\x00');
  bytes[0] = '\x80';  // -128
  bytes[31] = '\x7f';
  out = Dequantized(WeightType::kQ8_0, two + bytes, 32);
  EXPECT_EQ(out[0], -256);
  EXPECT_EQ(out[31], 254);
  EXPECT_EQ(out[1], 0);
}

// Any bytes are a block: what is no number stays none, and nothing else comes of it.
TEST(DequantizeRow, ScalesThatAreNoNumbersGiveNone) {
  for (const WeightBlock& block : kWeightBlocks) {
    if (IsPlain(block.type)) continue;
    const std::string bytes(static_cast<size_t>(block.bytes), '\xff');  // f16 NaN wherever it stands
    for (float value : Dequantized(block.type, bytes, block.elements)) EXPECT_TRUE(std::isnan(value)) << block.name;
  }
}

class RoundTrip : public testing::TestWithParam<std::pair<WeightType, float>> {};

TEST_P(RoundTrip, StaysWithinHalfAStep) {
  const auto [type, tolerance] = GetParam();
  const int count = 3 * std::max(32, BlockOf(type).elements);  // within [-1, 1]
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(std::sin(static_cast<float>(i) * 0.7f));
  // One byte in front: rows need no alignment.
  std::string bytes(1, 'x');
  bytes += Quantize(type, values);
  std::vector<float> out(values.size());
  DequantizeRow(type, BytesOf(bytes) + 1, count, out.data());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(out[i], values[i], tolerance) << i;
}

// Half of the range over the number of steps, and a little for the half precision of the scale; the signed types have
// one step less on the side opposite to the largest value.
INSTANTIATE_TEST_SUITE_P(AllTypes, RoundTrip,
                         testing::Values(std::pair(WeightType::kF32, 0.0f), std::pair(WeightType::kF16, 0.0003f),
                                         std::pair(WeightType::kBF16, 0.002f), std::pair(WeightType::kQ4_0, 0.127f),
                                         std::pair(WeightType::kQ4_1, 0.068f), std::pair(WeightType::kQ5_0, 0.064f),
                                         std::pair(WeightType::kQ5_1, 0.034f), std::pair(WeightType::kQ8_0, 0.0042f),
                                         std::pair(WeightType::kIQ4_NL, 0.14f), std::pair(WeightType::kIQ4_XS, 0.15f),
                                         std::pair(WeightType::kQ2_K, 0.36f), std::pair(WeightType::kQ3_K, 0.27f),
                                         std::pair(WeightType::kQ4_K, 0.08f), std::pair(WeightType::kQ5_K, 0.045f),
                                         std::pair(WeightType::kQ6_K, 0.04f)),
                         [](const auto& info) { return std::string(BlockOf(info.param.first).name); });

TEST(Quantize, AllZerosStayZero) {
  const std::vector<float> zeros(256, 0.0f);
  for (const WeightBlock& block : kWeightBlocks) {
    for (float value : Dequantized(block.type, Quantize(block.type, zeros), 256)) EXPECT_EQ(value, 0) << block.name;
  }
}

}  // namespace
}  // namespace runahead
