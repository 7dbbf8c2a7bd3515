#include "kernels/cpu/cpu_isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

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

TEST(CpuIsa, OneDnnNamesLimitVnniToo) {
  EXPECT_TRUE(MaxVnniByName("").avx && MaxVnniByName("").avx512);
  EXPECT_FALSE(MaxVnniByName("AVX2").avx || MaxVnniByName("AVX2").avx512);
  EXPECT_TRUE(MaxVnniByName("AVX2_VNNI").avx);
  EXPECT_FALSE(MaxVnniByName("AVX2_VNNI").avx512);
  EXPECT_FALSE(MaxVnniByName("AVX512_CORE").avx512);
  EXPECT_TRUE(MaxVnniByName("AVX512_CORE_VNNI").avx512);
  EXPECT_TRUE(MaxVnniByName("").amx && MaxVnniByName("AVX512_CORE_AMX").amx);
  EXPECT_FALSE(MaxVnniByName("AVX512_CORE_BF16").amx || MaxVnniByName("AVX2_VNNI").amx);
}

// What the kernel says of this CPU, which is not how DetectCpuIsa finds it.
bool KernelSays(std::initializer_list<const char*> wanted) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && line.rfind("flags", 0) != 0) {
  }
  std::istringstream words(line);
  const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
  return std::all_of(wanted.begin(), wanted.end(), [&](const char* flag) { return flags.count(flag) > 0; });
}

CpuIsa IsaByKernel() {
  if (!KernelSays({"avx2", "fma", "f16c"})) return CpuIsa::kBaseline;
  if (!KernelSays({"avx512f", "avx512bw", "avx512vl", "avx512dq"})) return CpuIsa::kAvx2;
  if (!KernelSays({"avx512_bf16"})) return CpuIsa::kAvx512;
  return KernelSays({"amx_bf16", "amx_tile"}) ? CpuIsa::kAmx : CpuIsa::kAvx512Bf16;
}

// Runs as it is, and again with ONEDNN_MAX_CPU_ISA set to older ones (CMakeLists.txt).
TEST(CpuIsa, DetectionIsTheKernelsWithinTheLimit) {
  const char* const variable = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string limit = variable == nullptr ? "" : variable;
  const CpuIsa allowed = limit == "AVX2" ? CpuIsa::kAvx2 : limit == "AVX512_CORE" ? CpuIsa::kAvx512 : CpuIsa::kAmx;
  EXPECT_EQ(CpuIsaName(DetectCpuIsa()), CpuIsaName(std::min(IsaByKernel(), allowed)));
  if (allowed < CpuIsa::kAvx512Bf16) {
    EXPECT_EQ(FastestDType(), DType::kF32);
  }
  const CpuVnni vnni = DetectCpuVnni();
  const bool limited = allowed < CpuIsa::kAmx;  // AVX512_CORE has no VNNI, either
  EXPECT_EQ(vnni.avx512, !limited && KernelSays({"avx512_vnni"}));
  EXPECT_EQ(vnni.amx, vnni.avx512 && KernelSays({"amx_int8", "amx_tile"}));
}

}  // namespace
}  // namespace runahead
