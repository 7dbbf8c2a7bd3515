#include "kernels/cpu/cpu_isa.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

TEST(CpuIsa, FastestDTypeFollowsTheMeasurements) {
  EXPECT_EQ(FastestDType(CpuIsa::kAmx, false), DType::kBF16);
  EXPECT_EQ(FastestDType(CpuIsa::kAvx512Bf16, true), DType::kBF16);
  EXPECT_EQ(FastestDType(CpuIsa::kAvx512Bf16, false), DType::kF32);
  EXPECT_EQ(FastestDType(CpuIsa::kAvx512, true), DType::kF32);
  EXPECT_EQ(FastestDType(CpuIsa::kAvx2, true), DType::kF32);
}

TEST(CpuIsa, Bf16NeedsAvx512) {
  EXPECT_FALSE(SupportsBf16(CpuIsa::kAvx2));
  EXPECT_TRUE(SupportsBf16(CpuIsa::kAvx512));
}

TEST(CpuIsa, OneDnnNamesLimitUsToo) {
  EXPECT_EQ(MaxIsaByName(""), CpuIsa::kAmx);
  EXPECT_EQ(MaxIsaByName("ALL"), CpuIsa::kAmx);
  EXPECT_EQ(MaxIsaByName("AVX2"), CpuIsa::kAvx2);
  EXPECT_EQ(MaxIsaByName("AVX512_CORE"), CpuIsa::kAvx512);
  EXPECT_EQ(MaxIsaByName("AVX512_CORE_BF16"), CpuIsa::kAvx512Bf16);
  EXPECT_EQ(MaxIsaByName("SSE41"), CpuIsa::kBaseline);
}

TEST(CpuIsa, DetectionIsStable) {
  EXPECT_EQ(DetectCpuIsa(), DetectCpuIsa());
  EXPECT_NE(CpuIsaName(DetectCpuIsa()), "unknown");
}

}  // namespace
}  // namespace runahead
