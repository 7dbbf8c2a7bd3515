#include "kernels/base/weight_type.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

TEST(WeightType, RowBytesOfEveryType) {
  EXPECT_EQ(WeightRowBytes(WeightType::kF32, 129), 516u);
  EXPECT_EQ(WeightRowBytes(WeightType::kF16, 129), 258u);
  EXPECT_EQ(WeightRowBytes(WeightType::kBF16, 129), 258u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ8_0, 96), 102u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ4_0, 96), 54u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ4_1, 96), 60u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ5_0, 96), 66u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ5_1, 96), 72u);
  EXPECT_EQ(WeightRowBytes(WeightType::kIQ4_NL, 96), 54u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ2_K, 768), 252u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ3_K, 768), 330u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ4_K, 768), 432u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ5_K, 768), 528u);
  EXPECT_EQ(WeightRowBytes(WeightType::kQ6_K, 768), 630u);
  EXPECT_EQ(WeightRowBytes(WeightType::kIQ4_XS, 768), 408u);
}

TEST(WeightType, WhatIsNoScaleIsThirtyTwoElementsOfSoManyBits) {
  const auto bits = [](WeightType type) { return 8 * (WeightRowBytes(type, 32) - BlockOf(type).scale_bytes()) / 32; };
  for (const WeightType type : {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kIQ4_NL}) EXPECT_EQ(bits(type), 4u);
  for (const WeightType type : {WeightType::kQ5_0, WeightType::kQ5_1}) EXPECT_EQ(bits(type), 5u);
  EXPECT_EQ(bits(WeightType::kQ8_0), 8u);
  for (const WeightBlock& block : kWeightBlocks) {
    EXPECT_EQ(block.scales == 0, IsPlain(block.type) || IsSuperblock(block.type)) << block.name;
  }
}

}  // namespace
}  // namespace runahead
