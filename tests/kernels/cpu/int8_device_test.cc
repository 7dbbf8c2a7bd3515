// What decode rests on: a row of a CPU device's product in 8 bits is bitwise the same in any batch, in any range of
// columns and on any threads, and is that of the scalar formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/cpu/int8_reference.h"
#include "tests/testing/device_tensor.h"

namespace runahead {
namespace {

class Int8DeviceTest : public ::testing::TestWithParam<WeightType> {
 protected:
  static constexpr int64_t kRows = 199, kMost = 70;

  const int64_t cols_ = ColsFor(GetParam(), 96);
  const RandomWeights source_{GetParam(), kRows, cols_, 1};
  const std::vector<float> x_ = RandomFloats(kMost * cols_, 2);
  const std::vector<float> wanted_ = ScalarProducts(source_, x_, kMost);
};

TEST_P(Int8DeviceTest, RowsAreThoseOfTheScalarFormulaInAnyBatchAndOnAnyThreads) {
  for (const int threads : {1, 2, 3}) {
    DeviceMemory memory(*NewCpuDevice({.threads = threads, .int8 = true, .kv_dtype = DType::kF16}));
    const auto weights = *memory.device().LoadWeights(source_.Source(), kUsePrefill | kUseDecode);
    for (const bool invariant : {false, true}) {
      for (const int64_t m : {1, 8, 32, 70}) {
        const Tensor x = memory.NewTensor({x_.end() - m * cols_, x_.end()}, m, DType::kF32, 4);
        for (const auto& [first, asked] : {std::pair<int64_t, int64_t>{0, kRows}, {7, 150}}) {
          const Tensor out = memory.Empty(m, asked, DType::kF32, 3);
          const LinearOptions options{.batch_invariant = invariant, .first_row = first};
          ASSERT_TRUE(memory.device().Linear(memory.stream(), x, weights, options, out).ok());
          const std::vector<float> got = memory.Read(out);
          for (int64_t at = 0; at < m * asked; ++at) {
            ASSERT_EQ(got[at], wanted_[(kMost - m + at / asked) * kRows + first + at % asked])
                << m << " rows on " << threads << " threads: " << at / asked << " " << first + at % asked;
          }
        }
      }
    }
  }
}

// X that is kept in 8 bits: what it reads back as products quantise to the same codes and scales.
TEST_P(Int8DeviceTest, OfRowsThatWereKeptIn8BitsProductsAreTheSame) {
  DeviceMemory memory(*NewCpuDevice({.threads = 2, .int8 = true}));
  const KvQuant quant{.bits = 8, .group = 32, .symmetric = true};
  const auto weights = *memory.device().LoadWeights(source_.Source(), kUseDecode);
  const Tensor x = memory.NewTensor(x_, kMost, DType::kF32, 4), back = memory.Empty(kMost, cols_);
  const BufferRef kept = memory.NewBytes(std::vector<std::byte>(kMost * KvQuantRowBytes(cols_, quant)));
  ASSERT_TRUE(memory.device().QuantizeKv(memory.stream(), x, quant, kept).ok());
  ASSERT_TRUE(memory.device().DequantizeKv(memory.stream(), kept, quant, back).ok());
  ASSERT_NE(memory.Read(back), x_);
  const Tensor out = memory.Empty(kMost, kRows);
  ASSERT_TRUE(memory.device().Linear(memory.stream(), back, weights, {}, out).ok());
  EXPECT_EQ(memory.Read(out), wanted_);
}

// Why they are: a scale times 127, rounded, over 127 is that scale again, whatever a block's largest value was. Powers
// of two change nothing, so all that matters are the values from 1 to 2.
TEST(Int8Scale, ThatIsMadeAgainIsTheSame) {
  for (uint32_t bits = std::bit_cast<uint32_t>(1.0f); bits < std::bit_cast<uint32_t>(2.0f); ++bits) {
    const float scale = std::bit_cast<float>(bits) / 127.0f;
    const float largest = 127.0f * scale;
    ASSERT_EQ(largest / 127.0f, scale) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Int8DeviceTest, ::testing::ValuesIn(kInt8Types),
                         [](const auto& test) { return std::string(BlockOf(test.param).name); });

}  // namespace
}  // namespace runahead
