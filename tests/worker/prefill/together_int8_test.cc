// Prompts alone and in one pass with others where products are in 8 bits, the default for quantised models on CPUs, and
// KV is in f16, its default, or in f32.
#include <string>

#include "gtest/gtest.h"
#include "tests/worker/decode/int8_model.h"
#include "tests/worker/prefill/together_parity.h"

namespace runahead {
namespace {

struct Int8Prompts {
  const char* name;
  WeightType type;
  DType kv_dtype;
};
void PrintTo(const Int8Prompts& of, std::ostream* out) {
  *out << of.name;
}

class TogetherInInt8 : public ::testing::TestWithParam<Int8Prompts> {};

TEST_P(TogetherInInt8, IsTheSameAsAlone) {
  for (const int64_t window : {0, 37}) {
    SyntheticModel model = BlocksModel();
    model.SetWeightType(GetParam().type);
    model.window = window;
    const LoadedModel loaded = LoadInt8(WriteSynthetic(model, "together_int8"), 2, GetParam().kv_dtype);
    ExpectSameAloneAndTogether(loaded, GetParam().name, /*within=*/0.2);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TogetherInInt8,
                         ::testing::Values(Int8Prompts{"q4_1", WeightType::kQ4_1, DType::kF16},
                                           Int8Prompts{"q8_0", WeightType::kQ8_0, DType::kF16},
                                           Int8Prompts{"q4_k", WeightType::kQ4_K, DType::kF16},
                                           Int8Prompts{"q4_1_f32", WeightType::kQ4_1, DType::kF32}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace runahead
