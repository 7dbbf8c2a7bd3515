#include "worker/model/warm_up.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

class WarmUpTest : public testing::Test {
 protected:
  // Null where the device's memory does not do for the weights. No budget: 0.
  std::shared_ptr<const Model> Load(size_t budget) {
    device_ = *NewCpuDevice({.threads = 1, .memory_budget = budget});
    auto model = LoadModel(file_, device_, kUsePrefill | kUseDecode, [](int, int) {});
    EXPECT_TRUE(model.ok() || absl::IsResourceExhausted(model.status())) << model.status();
    return model.ok() ? *model : nullptr;
  }
  absl::Status WarmUpWith(size_t budget, unsigned uses) {
    const auto model = Load(budget);
    return model == nullptr ? absl::NotFoundError("no model") : WarmUp(*model, *device_, uses);
  }
  size_t LeastForWeights() {
    size_t least = 0;
    for (size_t step = 1 << 24; step > 0; step /= 2) {
      if (Load(least + step) == nullptr) least += step;
    }
    return least + 1;
  }

  const std::shared_ptr<const GgufFile> file_ = *GgufFile::Open(WriteSynthetic(SmallModel(), "warm_up"));
  std::shared_ptr<Device> device_;
};

TEST_F(WarmUpTest, RunsWhatAWorkerIsFor) {
  EXPECT_EQ(WarmUpWith(0, kUsePrefill | kUseDecode), absl::OkStatus());
}

TEST_F(WarmUpTest, MemoryForShortPromptsIsEnough) {
  EXPECT_EQ(WarmUpWith(LeastForWeights() + (1 << 18), kUsePrefill | kUseDecode), absl::OkStatus());
}

TEST_F(WarmUpTest, MemoryForNoPromptIsNot) {
  const size_t least = LeastForWeights();
  EXPECT_EQ(WarmUpWith(least, kUsePrefill).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(WarmUpWith(least, kUseDecode).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace runahead
