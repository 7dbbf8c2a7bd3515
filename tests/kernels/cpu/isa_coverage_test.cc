// Says for which vector instructions this machine tests nothing: the kernels' tests take every form that it can run.
#include <string>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_isa.h"

namespace runahead {
namespace {

class IsaCoverage : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(IsaCoverage, TheKernelsFormForItRuns) {
  if (GetParam() > DetectCpuIsa()) {
    GTEST_SKIP() << "no " << CpuIsaName(GetParam()) << " here: attention, GEMM and decode products in that form";
  }
}

TEST(VnniCoverage, AvxVnniRuns) {
  if (!DetectCpuVnni().avx) GTEST_SKIP() << "no AVX-VNNI here: products in 8 bits in that form";
}

TEST(VnniCoverage, Avx512VnniRuns) {
  if (!DetectCpuVnni().avx512) GTEST_SKIP() << "no AVX512-VNNI here: products in 8 bits in that form";
}

TEST(VnniCoverage, AmxInt8Runs) {
  if (!DetectCpuVnni().amx) GTEST_SKIP() << "no AMX-INT8 here: products in 8 bits on real tiles";
}

INSTANTIATE_TEST_SUITE_P(Isas, IsaCoverage,
                         ::testing::Values(CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx),
                         [](const auto& info) { return std::string(CpuIsaName(info.param)); });

}  // namespace
}  // namespace runahead
