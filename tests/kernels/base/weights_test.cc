#include "kernels/base/weights.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

TEST(Weights, RowBytesOfEveryType) {
  EXPECT_EQ(WeightRowBytes(WeightType::kF32, 129), 516u);
  EXPECT_EQ(WeightRowBytes(WeightType::kF16, 129), 258u);
  EXPECT_EQ(WeightRowBytes(WeightType::kBF16, 129), 258u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ8_0, 96), 102u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ4_0, 96), 54u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ4_1, 96), 60u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ5_0, 96), 66u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ5_1, 96), 72u);
}

}  // namespace
}  // namespace runahead
