// What `device: auto|cuda` opens where there is a GPU.
#include <gtest/gtest.h>

#include "kernels/cuda/loader.h"
#include "worker/device_factory.h"

namespace runahead {
namespace {

class DeviceOnGpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const absl::Status gpu = ProbeGpu(); !gpu.ok()) GTEST_SKIP() << "skipped: no CUDA device: " << gpu.message();
    options_.device = GetParam();
    options_.threads = 1;
  }

  WorkerOptions options_;
};

TEST_P(DeviceOnGpu, IsTheFirstGpuWithLinksToOthers) {
  const auto opened = OpenDevice(options_, {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->device->name(), "cuda:0");
  EXPECT_EQ(opened->device->compute_dtype(), DType::kBF16);
  EXPECT_FALSE(opened->device->host_reads_device_memory());
  ASSERT_NE(opened->peer_comms, nullptr);
  EXPECT_FALSE(opened->peer_comms->identity().empty());
}

TEST_P(DeviceOnGpu, KeepsToTheDtypeAndTheBudgetThatItIsTold) {
  options_.dtype = "f16";
  options_.device_memory_budget = 1 << 20;
  const auto opened = OpenDevice(options_, {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->device->compute_dtype(), DType::kF16);
  EXPECT_EQ(opened->device->Allocate(2 << 20, MemoryKind::kDevice).status().code(),
            absl::StatusCode::kResourceExhausted);
}

INSTANTIATE_TEST_SUITE_P(Options, DeviceOnGpu, testing::Values("auto", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace runahead
