#include "tests/kernels/op_parity.h"

#include "kernels/cpu/cpu_device.h"

namespace runahead {
namespace {

std::shared_ptr<Device> MakeCpu(int threads, DType dtype) {
  return SupportsBf16(DetectCpuIsa()) || dtype == DType::kF32
             ? *NewCpuDevice({.threads = threads, .compute_dtype = dtype})
             : nullptr;
}

INSTANTIATE_TEST_SUITE_P(OneThread, OpParity, ::testing::Values([] { return MakeCpu(1, DType::kF32); }));
INSTANTIATE_TEST_SUITE_P(ThreeThreads, OpParity, ::testing::Values([] { return MakeCpu(3, DType::kF32); }));
INSTANTIATE_TEST_SUITE_P(Bf16, OpParity, ::testing::Values([] { return MakeCpu(2, DType::kBF16); }));

}  // namespace
}  // namespace runahead
