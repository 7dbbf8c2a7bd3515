// The quick-start model against transformers, in both dtypes.
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/golden/golden_files.h"

namespace runahead {
namespace {

TEST(GenerateGolden, F32MatchesEveryToken) {
  if (QuickStartModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model; tests/run sets it";
  const LoadedModel loaded = LoadForTest(QuickStartModelPath(), DType::kF32, 2);
  const std::vector<GoldenPrompt> prompts = ReadGoldenPrompts();
  ASSERT_GE(prompts.size(), 8u);
  for (const GoldenPrompt& prompt : prompts) {
    SCOPED_TRACE(testing::PrintToString(prompt.ids.size()) + " prompt tokens");
    ExpectGreedy(loaded, prompt, 2e-3f);
  }
}

TEST(GenerateGolden, Bf16TeacherForcedFollowsTheRule) {
  if (QuickStartModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model; tests/run sets it";
  CpuDeviceOptions options;
  options.compute_dtype = DType::kBF16;
  if (!NewCpuDevice(options).ok()) GTEST_SKIP() << "no bf16 on this CPU";
  const LoadedModel loaded = LoadForTest(QuickStartModelPath(), DType::kBF16, 2);
  ForcedSteps all;
  for (const GoldenPrompt& prompt : ReadGoldenPrompts()) {
    SCOPED_TRACE(testing::PrintToString(prompt.ids.size()) + " prompt tokens");
    const ForcedSteps steps = RunForced(loaded, prompt);
    all.steps += steps.steps;
    all.different += steps.different;
  }
  EXPECT_LE(all.different, all.steps * 3 / 100) << "of " << all.steps;
  RecordProperty("different", all.different);
}

}  // namespace
}  // namespace runahead
