// Rows of prompts that a decode worker computes, against what a prefill worker gives: logits and KV.
#include "tests/worker/decode/prompt_rows.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/small_family.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

// f32: rounding of sums. bf16: two prefills of one prompt are that far apart at most (design: 0.36 of logits of about
// ten).
double Within(DType dtype) {
  return dtype == DType::kF32 ? 1e-4 : 0.05;
}

class PromptRowsOfFamily : public ::testing::TestWithParam<SyntheticFamily> {};

TEST_P(PromptRowsOfFamily, AreThoseOfPrefillBehindAnyKnownBeginning) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  const SyntheticModel model = SmallModelOf(GetParam(), TestDeviceIsSlow() ? 9 : 37);
  const LoadedModel loaded = LoadForTest(WriteSynthetic(model, "prompt_rows"), DType::kF32, 2);
  const std::string family(ArchitectureOf(GetParam()));
  if (TestDeviceIsSlow()) return ExpectRowsOfPrefill(loaded, {5, 6, 17}, Within(DType::kF32), family);
  ExpectRowsOfPrefill(loaded, {0, 40, 41, 130}, Within(DType::kF32), family);
  ExpectRowsOfPrefill(loaded, {129, 130}, Within(DType::kF32), family);
}

INSTANTIATE_TEST_SUITE_P(Families, PromptRowsOfFamily, ::testing::ValuesIn(kSyntheticFamilies),
                         [](const auto& info) { return std::string(ArchitectureOf(info.param)); });

class PromptRowsOfDType : public ::testing::TestWithParam<DType> {};

// Over borders of blocks, in one row and in hundreds.
TEST_P(PromptRowsOfDType, AreThoseOfPrefillHoweverTheyAreCut) {
  RUNAHEAD_NEED_TEST_DEVICE(GetParam());
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(3), "prompt_rows_dtype"), GetParam(), 2);
  const std::string dtype(DTypeName(GetParam()));
  if (TestDeviceIsSlow()) return ExpectRowsOfPrefill(loaded, {9, 10, 20}, Within(GetParam()), dtype);
  ExpectRowsOfPrefill(loaded, {255, 256, 257, 300}, Within(GetParam()), dtype);
  ExpectRowsOfPrefill(loaded, {1, 600}, Within(GetParam()), dtype);
  ExpectRowsOfPrefill(loaded, {500, 516, 532, 548, 564, 580, 596, 600}, Within(GetParam()), dtype);
}

INSTANTIATE_TEST_SUITE_P(DTypes, PromptRowsOfDType, ::testing::ValuesIn(TestDeviceDTypes()),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace runahead
