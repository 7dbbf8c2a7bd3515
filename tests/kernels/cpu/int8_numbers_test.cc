// Products in 8 bits of all that f16 scales and f32 activations can be.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/int8/quantized_rows.h"
#include "tests/kernels/cpu/int8_reference.h"

namespace runahead {
namespace {

// The same bits, or NaN as well.
bool SameNumber(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Rows of blocks: all of a row are of one magnitude, or each of its own. Some are zeros.
std::vector<float> ActivationsOfManyMagnitudes(int64_t m, int64_t cols, uint32_t seed) {
  std::vector<float> x = RandomFloats(m * cols, seed);
  std::mt19937 random(seed);
  const auto exponent = [&] { return static_cast<int>(random() % 181) - 120; };
  int of_row = 0;
  for (int64_t at = 0; at < m * cols; at += kInt8Block) {
    if (at % cols == 0) of_row = exponent();
    const bool zero = random() % 8 == 0, own = at / cols % 2 == 1;
    const float factor = zero ? 0.0f : std::ldexp(1.0f, own ? exponent() : of_row);
    for (int64_t i = at; i < at + kInt8Block; ++i) x[i] *= factor;
  }
  return x;
}

class Int8NumbersTest : public ::testing::TestWithParam<WeightType> {
 protected:
  // Of all rows of `source`, with every kernel of this machine.
  static void ExpectTheScalarFormula(const RandomWeights& source, const std::vector<float>& x, int64_t m) {
    LoadedInt8 loaded(source.Source());
    const std::vector<float> wanted = ScalarProducts(source, x, m);
    for (const Int8Kernels* kernels : Int8KernelsHere()) {
      const std::vector<float> out =
          loaded.Multiply(*kernels, {.x = x.data(), .x_stride = source.cols, .m = m, .cols = source.rows});
      for (size_t at = 0; at < out.size(); ++at) {
        ASSERT_TRUE(SameNumber(out[at], wanted[at]))
            << kernels->name << " row " << at / source.rows << " of " << m << ", column " << at % source.rows << ": "
            << out[at] << ", not " << wanted[at];
      }
    }
  }
};

TEST_P(Int8NumbersTest, AnyFiniteScaleAndActivationsOfAnyMagnitudeGiveTheScalarFormula) {
  for (const int64_t blocks : {1, 5}) {
    for (const int64_t m : {1, 7, 19}) {
      const int64_t cols = ColsFor(GetParam(), blocks * kInt8Block);
      ExpectTheScalarFormula(RandomWeights(GetParam(), 203, cols, 1, DrawnScales::kAllFinite),
                             ActivationsOfManyMagnitudes(m, cols, 2 + static_cast<uint32_t>(m)), m);
    }
  }
}

TEST_P(Int8NumbersTest, AFiniteScaleComesBackAsTheNearestFloat) {
  const int64_t cols = ColsFor(GetParam(), 96);
  const RandomWeights source(GetParam(), 203, cols, 3, DrawnScales::kAllFinite);
  LoadedInt8 loaded(source.Source());
  std::vector<float> out(cols);
  for (int64_t row = 0; row < source.rows; ++row) {
    loaded.weights->DequantizeRow(row, out.data());
    for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(out[c], static_cast<float>(source.Value(row, c))) << row << " " << c;
  }
}

// Whatever it meets, zeros too: a service then says that logits are not finite.
TEST_P(Int8NumbersTest, ADamagedScaleShowsInItsRowAndInNoOther) {
  constexpr int64_t kRows = 37, kM = 9;
  const int64_t cols = ColsFor(GetParam(), 96);
  const RandomWeights sound(GetParam(), kRows, cols, 4);
  std::vector<float> x = RandomFloats(kM * cols, 5);
  std::fill_n(x.begin() + 3 * cols, cols, 0.0f);
  for (const bool minimum : {false, true}) {
    if (minimum && !sound.HasMinimum()) continue;
    for (const uint16_t half : kDamagedHalves) {
      for (const int64_t row : {0, 9, 20, 36}) {
        SCOPED_TRACE(::testing::Message() << half << " in row " << row << (minimum ? ", its minimum" : ""));
        const RandomWeights damaged = sound.WithHalf(row, cols - 1, minimum, half);
        ExpectTheScalarFormula(damaged, x, kM);
        const std::vector<float> scalar = ScalarProducts(damaged, x, kM);
        for (size_t at = 0; at < scalar.size(); ++at) {
          ASSERT_EQ(std::isfinite(scalar[at]), static_cast<int64_t>(at) % kRows != row) << at;
        }
        std::vector<float> out(cols);
        LoadedInt8(damaged.Source()).weights->DequantizeRow(row, out.data());
        EXPECT_FALSE(std::isfinite(out[cols - 1]));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Int8NumbersTest, ::testing::ValuesIn(kInt8Types),
                         [](const auto& test) { return std::string(BlockOf(test.param).name); });

// Each block of `x` as kernels quantise it, next to `x` as one row among others.
TEST(Int8Activations, BlocksOfAnyMagnitudeAreQuantisedAsTheScalarFormulaSays) {
  constexpr int64_t kRows = 3, kRow = 1;
  std::vector<float> x;
  const auto add = [&](float largest) {
    std::vector<float> block = RandomFloats(kInt8Block, 100 + static_cast<uint32_t>(x.size()));
    for (float& value : block) value *= largest;
    block[x.size() / kInt8Block % kInt8Block] = x.size() / kInt8Block % 2 == 0 ? largest : -largest;
    x.insert(x.end(), block.begin(), block.end());
  };
  for (int exponent = -149; exponent <= 127; ++exponent) add(std::ldexp(1.0f, exponent));
  add(std::nextafter(0x1p-100f, 0.0f));
  add(std::nextafter(0x1p-100f, 1.0f));
  add(0.0f);
  add(std::numeric_limits<float>::max());
  const auto blocks = static_cast<int64_t>(x.size()) / kInt8Block;
  std::vector<float> rows(kRows * x.size(), 1.0f);
  std::copy(x.begin(), x.end(), rows.begin() + kRow * static_cast<int64_t>(x.size()));
  ThreadPool pool(1);
  for (const Int8Kernels* kernels : Int8KernelsHere()) {
    const QuantizedRows quantized(*kernels, pool, rows.data(), static_cast<int64_t>(x.size()), kRows, blocks);
    const Int8Panel panel = quantized.panel(0);
    for (int64_t b = 0; b < blocks; ++b) {
      const ScalarBlock wanted(x.data() + b * kInt8Block);
      const int64_t at = b * kRows + kRow;
      int halves[2] = {};
      for (int i = 0; i < kInt8Block; ++i) {
        ASSERT_EQ(panel.q[at * kInt8Block + i], wanted.q[i]) << kernels->name << " block " << b << " " << i;
        halves[i * 2 / kInt8Block] += wanted.q[i];
      }
      ASSERT_EQ(panel.scales[at], wanted.scale) << kernels->name << " block " << b;
      ASSERT_EQ(panel.minus_sums[at], -wanted.sum) << kernels->name << " block " << b;
      ASSERT_EQ(panel.minus_half_sums[2 * at], -halves[0]) << kernels->name << " block " << b;
      ASSERT_EQ(panel.minus_half_sums[2 * at + 1], -halves[1]) << kernels->name << " block " << b;
      ASSERT_EQ(panel.scaled_sums[at], wanted.scale * static_cast<float>(wanted.sum)) << kernels->name << " " << b;
    }
  }
  EXPECT_EQ(ScalarBlock(x.data()).scale, 0.0f);  // of 2^-149
  EXPECT_GT(ScalarBlock(x.data() + (149 - 100) * kInt8Block).scale, 0.0f);
}

}  // namespace
}  // namespace runahead
