// The quick-start model against transformers, in every dtype of the device.
#include <gtest/gtest.h>

#include "tests/golden/golden_files.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

TEST(GenerateGolden, F32MatchesEveryToken) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  if (QuickStartModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model; tests/run sets it";
  const LoadedModel loaded = LoadForTest(QuickStartModelPath(), DType::kF32, 2);
  const std::vector<GoldenPrompt> prompts = ReadGoldenPrompts();
  ASSERT_GE(prompts.size(), 8u);
  for (const GoldenPrompt& prompt : prompts) {
    SCOPED_TRACE(testing::PrintToString(prompt.ids.size()) + " prompt tokens");
    ExpectGreedy(loaded, prompt);
  }
}

class ShortGenerateGolden : public testing::TestWithParam<DType> {};

TEST_P(ShortGenerateGolden, TeacherForcedFollowsTheRule) {
  RUNAHEAD_NEED_TEST_DEVICE(GetParam());
  if (QuickStartModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model; tests/run sets it";
  const LoadedModel loaded = LoadForTest(QuickStartModelPath(), GetParam(), 2);
  TokenRule rule(GetParam());
  for (const GoldenPrompt& prompt : ReadGoldenPrompts()) {
    SCOPED_TRACE(testing::PrintToString(prompt.ids.size()) + " prompt tokens");
    RunForced(loaded, prompt, rule);
  }
  rule.ExpectKept();
  RecordProperty("different", rule.different());
}

std::vector<DType> TestDeviceDTypesOf16Bits() {
  std::vector<DType> dtypes = TestDeviceDTypes();
  std::erase(dtypes, DType::kF32);
  return dtypes;
}

INSTANTIATE_TEST_SUITE_P(DTypes, ShortGenerateGolden, testing::ValuesIn(TestDeviceDTypesOf16Bits()),
                         [](const auto& dtype) { return std::string(DTypeName(dtype.param)); });

}  // namespace
}  // namespace runahead
