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

#include "kernels/cpu/int8/product.h"

namespace runahead {

// On other CPUs than this: emulated_avx_vnni_cpu.cc, emulated_amx_cpu.cc.
CpuIsa AvxVnniCpu_DetectCpuIsa();
CpuVnni AvxVnniCpu_DetectCpuVnni();
const Int8Kernels& AvxVnniCpu_FastestInt8Kernels();
CpuIsa AmxCpu_DetectCpuIsa();
CpuVnni AmxCpu_DetectCpuVnni();
const Int8Kernels& AmxCpu_FastestInt8Kernels();

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
  EXPECT_FALSE(MaxVnniByName("AVX512_CORE").avx || MaxVnniByName("AVX512_CORE").avx512);
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

// What ONEDNN_MAX_CPU_ISA allows.
struct Limit {
  const char* name;
  CpuIsa isa;
  CpuVnni vnni;
};
constexpr Limit kLimits[] = {
    {"", CpuIsa::kAmx, {.avx = true, .avx512 = true, .amx = true}},
    {"AVX2", CpuIsa::kAvx2, {}},
    {"AVX2_VNNI", CpuIsa::kAvx2, {.avx = true}},
    {"AVX512_CORE", CpuIsa::kAvx512, {}},
    {"AVX512_CORE_VNNI", CpuIsa::kAvx512, {.avx = true, .avx512 = true}},
    {"AVX512_CORE_BF16", CpuIsa::kAvx512Bf16, {.avx = true, .avx512 = true}},
    {"AVX512_CORE_AMX", CpuIsa::kAmx, {.avx = true, .avx512 = true, .amx = true}},
};

// Runs as it is, and again with ONEDNN_MAX_CPU_ISA set to each of these (CMakeLists.txt).
class CpuIsaWithinTheLimit : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const variable = std::getenv("ONEDNN_MAX_CPU_ISA");
    for (const Limit& limit : kLimits) {
      if (std::string(variable == nullptr ? "" : variable) == limit.name) limit_ = &limit;
    }
    ASSERT_NE(limit_, nullptr) << "kLimits lacks " << variable;
  }
  // What is found where the CPU has these.
  void ExpectVnni(const CpuVnni& found, const CpuVnni& has) const {
    EXPECT_EQ(found.avx, has.avx && limit_->vnni.avx);
    EXPECT_EQ(found.avx512, has.avx512 && limit_->vnni.avx512);
    EXPECT_EQ(found.amx, has.amx && limit_->vnni.amx);
  }
  std::string FastestProducts(const CpuVnni& has) const {
    if (has.amx && limit_->vnni.amx) return "amx";
    if (has.avx512 && limit_->vnni.avx512) return "avx512_vnni";
    return has.avx && limit_->vnni.avx ? "avx_vnni" : "avx2";
  }
  const Limit* limit_ = nullptr;
};

TEST_F(CpuIsaWithinTheLimit, ThisCpusIsFound) {
  EXPECT_EQ(CpuIsaName(DetectCpuIsa()), CpuIsaName(std::min(IsaByKernel(), limit_->isa)));
  if (limit_->isa < CpuIsa::kAvx512Bf16) {
    EXPECT_EQ(FastestDType(), DType::kF32);
  }
  const bool avx512 = IsaByKernel() >= CpuIsa::kAvx512 && KernelSays({"avx512_vnni"});
  const CpuVnni has = {
      .avx = KernelSays({"avx_vnni"}), .avx512 = avx512, .amx = avx512 && KernelSays({"amx_int8", "amx_tile"})};
  ExpectVnni(DetectCpuVnni(), has);
  EXPECT_EQ(FastestInt8Kernels().name, FastestProducts(has));
}

TEST_F(CpuIsaWithinTheLimit, ThatOfACpuWithAvxVnniAndNoAvx512IsFound) {
  EXPECT_EQ(AvxVnniCpu_DetectCpuIsa(), CpuIsa::kAvx2);
  ExpectVnni(AvxVnniCpu_DetectCpuVnni(), {.avx = true});
  EXPECT_EQ(AvxVnniCpu_FastestInt8Kernels().name, FastestProducts({.avx = true}));
}

TEST_F(CpuIsaWithinTheLimit, ThatOfACpuWithAmxIsFound) {
  const CpuVnni all = {.avx = true, .avx512 = true, .amx = true};
  EXPECT_EQ(CpuIsaName(AmxCpu_DetectCpuIsa()), CpuIsaName(limit_->isa));
  ExpectVnni(AmxCpu_DetectCpuVnni(), all);
  EXPECT_EQ(AmxCpu_FastestInt8Kernels().name, FastestProducts(all));
}

}  // namespace
}  // namespace runahead
