// The plugin of this build, on a machine with a GPU or without.
#include "kernels/cuda/plugin.h"

#include <gtest/gtest.h>

#include "kernels/cuda/loader.h"

namespace runahead {
namespace {

TEST(CudaPlugin, LoadsWithoutADriverAndSaysWhetherThereIsAGpu) {
  const auto plugin = OpenCudaPlugin();
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  const auto count = (*plugin)->count();
  EXPECT_EQ(count.ok(), ProbeGpu().ok()) << count.status();
  if (!count.ok()) {
    EXPECT_EQ(count.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ((*plugin)->info(0).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ((*plugin)->open({}).status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(CudaPlugin, IsOpenedOnce) {
  EXPECT_EQ(*OpenCudaPlugin(), *OpenCudaPlugin());
}

}  // namespace
}  // namespace runahead
