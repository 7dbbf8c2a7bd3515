#include "worker/prompt_rows.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMost = 512;

absl::Duration Ms(double ms) {
  return absl::Milliseconds(ms);
}

TEST(DefaultStepRows, TakeAsLongAsAStepOfOneSequence) {
  // A tenth of a millisecond a row beside 2: 80 rows are 10 ms.
  EXPECT_EQ(DefaultStepRows(Ms(10), {8, Ms(2.8)}, {32, Ms(5.2)}, kMost), 80);
  EXPECT_EQ(DefaultStepRows(Ms(10.7), {8, Ms(2.8)}, {32, Ms(5.2)}, kMost), 80) << "a multiple of 8";
}

TEST(DefaultStepRows, AreEightAtLeast) {
  EXPECT_EQ(DefaultStepRows(Ms(1), {8, Ms(40)}, {32, Ms(44)}, kMost), kLeastStepRows);
  EXPECT_EQ(DefaultStepRows(Ms(100), {8, Ms(1)}, {32, Ms(2)}, 3), kLeastStepRows);
}

TEST(DefaultStepRows, AreNoMoreThanALongPass) {
  EXPECT_EQ(DefaultStepRows(Ms(1000), {8, Ms(1)}, {32, Ms(2)}, kMost), kMost);
  EXPECT_EQ(DefaultStepRows(Ms(10), {8, Ms(3)}, {32, Ms(2)}, kMost), kMost) << "a noisy start";
}

class ChoosePromptRowsTest : public ::testing::Test {
 protected:
  ChoosePromptRowsTest() { options_.role = "decode"; }
  static LoadPlan PlanOf(WeightType type) {
    SyntheticModel model = SmallModel(2);
    model.heads = 8, model.head_dim = 32, model.hidden = 256, model.ffn = 512;
    model.SetWeightType(type);
    return *PlanLoading(*OpenModelFile(WriteSynthetic(model, "prompt_rows")));
  }
  // Of the layers' matrices in f32, as they are packed for prompts.
  static int64_t PackedBytes() {
    int64_t elements = 0;
    for (const LoadPlan::Matrix& matrix : PlanOf(WeightType::kQ4_1).matrices) {
      if (matrix.of_layer) elements += matrix.elements();
    }
    return static_cast<int64_t>(sizeof(float)) * elements;
  }
  // By default the memory is too small for weights that are packed for prompts alone.
  PromptRows Choose(bool int8, int64_t usable = 8 * PackedBytes() - 8) const {
    const std::shared_ptr<Device> device = *NewCpuDevice({.threads = 1, .int8 = int8});
    return ChoosePromptRows(options_, *device, PlanOf(WeightType::kQ4_1), usable);
  }
  WorkerOptions options_;
};

TEST_F(ChoosePromptRowsTest, AutoComputesThemWhereTheWeightsHaveOneForm) {
  const PromptRows rows = Choose(/*int8=*/true);
  EXPECT_TRUE(rows.computed) << rows.because;
  EXPECT_EQ(rows.weight_bytes, 0u);
}

TEST_F(ChoosePromptRowsTest, AutoPacksWeightsForThemWhereTheseAreAnEighthOfTheMemoryAtMost) {
  const PromptRows rows = Choose(/*int8=*/false, 8 * PackedBytes());
  EXPECT_TRUE(rows.computed) << rows.because;
  EXPECT_EQ(rows.weight_bytes, static_cast<size_t>(PackedBytes()));
}

TEST_F(ChoosePromptRowsTest, AutoPacksNoMoreAndSaysWhatTheyWouldTake) {
  const PromptRows rows = Choose(/*int8=*/false);
  EXPECT_FALSE(rows.computed);
  EXPECT_THAT(rows.because, HasSubstr("bytes more"));
  EXPECT_EQ(rows.weight_bytes, 0u);
}

TEST_F(ChoosePromptRowsTest, ANumberPacksThem) {
  options_.step_rows = "64";
  const PromptRows rows = Choose(/*int8=*/false);
  EXPECT_TRUE(rows.computed) << rows.because;
  EXPECT_EQ(rows.weight_bytes, static_cast<size_t>(PackedBytes()));
}

TEST_F(ChoosePromptRowsTest, WhoComputesPromptsAnywayHasTheWeights) {
  options_.role = "both";
  const PromptRows rows = Choose(/*int8=*/false);
  EXPECT_TRUE(rows.computed) << rows.because;
  EXPECT_EQ(rows.weight_bytes, 0u);
}

TEST_F(ChoosePromptRowsTest, OffAndZeroComputeNone) {
  for (const char* none : {"off", "0"}) {
    options_.step_rows = none;
    EXPECT_FALSE(Choose(/*int8=*/true).computed);
  }
}

TEST_F(ChoosePromptRowsTest, AutoStaysOutOfTheWayOfWhatComputesNone) {
  options_.static_window = 512;
  EXPECT_THAT(Choose(true).because, HasSubstr("static_window"));
  options_.static_window = 0;
  options_.kv_bits = "8";
  EXPECT_THAT(Choose(true).because, HasSubstr("kv_bits"));
  options_.kv_bits = "16";
  options_.device_memory_budget = 1 << 30;
  EXPECT_THAT(Choose(true).because, HasSubstr("device_memory_budget"));
  options_.device_memory_budget = 0;
  const std::shared_ptr<Device> linked = *NewCpuDevice({.emulated_link = *EmulatedLink::Create({.gbps = 1e6})});
  EXPECT_THAT(ChoosePromptRows(options_, *linked, PlanOf(WeightType::kQ4_1), 8 * PackedBytes()).because, HasSubstr("host memory"));
}

TEST(MeasureStepRows, IsWhatIsAskedForOrMeasured) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(2), "measure_rows"), DType::kF32, 1);
  EXPECT_EQ(*MeasureStepRows(*loaded.model, *loaded.device, 24), 24);
  const int64_t measured = *MeasureStepRows(*loaded.model, *loaded.device, 0);
  EXPECT_GE(measured, kLeastStepRows);
  EXPECT_LE(measured, loaded.device->gemm_rows());
}

}  // namespace
}  // namespace runahead
