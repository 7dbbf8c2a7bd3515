// What decode rests on: a row of a CPU device's product in 8 bits is bitwise the same in any batch, in any range of
// columns and on any threads, and is that of the scalar formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/cpu/int8_reference.h"
#include "tests/testing/device_tensor.h"

namespace runahead {
namespace {

class Int8DeviceTest : public testing::TestWithParam<WeightType> {
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

INSTANTIATE_TEST_SUITE_P(Types, Int8DeviceTest, testing::ValuesIn(kInt8Types),
                         [](const auto& test) { return std::string(BlockOf(test.param).name); });

}  // namespace
}  // namespace runahead
