// Prompts of all families and dtypes, alone and in one pass with others.
#include "tests/worker/prefill/together_parity.h"

#include <string>

#include "tests/testing/small_family.h"

namespace runahead {
namespace {

class TogetherOfFamily : public ::testing::TestWithParam<SyntheticFamily> {};

TEST_P(TogetherOfFamily, IsTheSameAsAlone) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  const SyntheticModel model = SmallModelOf(GetParam(), TestDeviceIsSlow() ? 9 : 37);
  const LoadedModel loaded = LoadForTest(WriteSynthetic(model, "together"), DType::kF32, 2);
  ExpectSameAloneAndTogether(loaded, ArchitectureOf(GetParam()), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Families, TogetherOfFamily, ::testing::ValuesIn(kSyntheticFamilies),
                         [](const auto& info) { return std::string(ArchitectureOf(info.param)); });

class TogetherOfDType : public ::testing::TestWithParam<DType> {};

TEST_P(TogetherOfDType, IsTheSameAsAlone) {
  RUNAHEAD_NEED_TEST_DEVICE(GetParam());
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(3), "together_dtype"), GetParam(), 2);
  ExpectSameAloneAndTogether(loaded, std::string(DTypeName(GetParam())), 0.4);
}

INSTANTIATE_TEST_SUITE_P(DTypes, TogetherOfDType, ::testing::ValuesIn(TestDeviceDTypes()),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace runahead
