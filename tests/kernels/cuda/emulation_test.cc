#include <gtest/gtest.h>

#include "tests/kernels/cuda/emulation_kernels.h"

namespace runahead {
namespace {

template <typename T>
class BlockSum : public testing::Test {};
using SummedTypes = testing::Types<int, int64_t, float, double>;
TYPED_TEST_SUITE(BlockSum, SummedTypes);

TYPED_TEST(BlockSum, AddsAllThreads) {
  for (const int threads : {32, 96, 1024}) {
    std::vector<TypeParam> values(3 * threads);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<TypeParam>(i);
    std::vector<TypeParam> sums(3);
    ASSERT_EQ(LaunchBlockSum(values.data(), sums.data(), 3, threads, nullptr), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    for (int b = 0; b < 3; ++b) {
      EXPECT_EQ(sums[b], static_cast<TypeParam>(threads * (b * threads) + threads * (threads - 1) / 2));
    }
  }
}

}  // namespace
}  // namespace runahead
