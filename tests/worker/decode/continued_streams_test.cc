// Streams that go on behind output which was computed elsewhere, with a real forward pass: they are the rest of the
// streams that were never cut, whether the engine computes several rows of such output in a step or one.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/small_model.h"
#include "tests/worker/decode/decode_world.h"
#include "tests/worker/decode/int8_model.h"

namespace runahead {
namespace {

struct ContinuedCase {
  const char* dtype;
  int64_t step_rows;
};

// The default of quantised models on CPUs, KV in f16; and plain ones.
LoadedModel Load(const std::string& dtype) {
  SyntheticModel model = dtype == "int8" ? BlocksModel() : SmallModel(3);
  if (dtype == "int8") model.SetWeightType(WeightType::kQ4_1);
  const std::string path = WriteSynthetic(model, absl::StrCat("continued_streams_", dtype));
  if (dtype == "int8") return LoadInt8(path, 2, DType::kF16);
  return LoadForTest(path, dtype == "f32" ? DType::kF32 : DType::kBF16, 2);
}

class ContinuedStreams : public ::testing::TestWithParam<ContinuedCase> {
 protected:
  DecodeWorld world_{Load(GetParam().dtype), 8, GetParam().step_rows};
};

// Beside each other, so that rows of output which is there and rows that draw share steps.
TEST_P(ContinuedStreams, AreTheRestOfThoseThatWereNeverCut) {
  std::vector<SamplingOptions> sampling(3);
  sampling[0].logprobs = 20;
  sampling[1].temperature = 0.8f, sampling[1].seed = 9, sampling[1].logprobs = 20;
  sampling[2].temperature = 0.9f, sampling[2].seed = 3, sampling[2].logprobs = 20;
  sampling[2].repetition_penalty = 1.2f, sampling[2].frequency_penalty = 0.3f;
  std::vector<DecodePrompt> prompts;
  std::vector<std::vector<Sampled>> whole;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back(world_.Prefill(20 + 110 * i, i));
    prompts.back().max_tokens = 60;
    whole.push_back(world_.Start(prompts[i], sampling[i])->Await());
    ASSERT_EQ(whole[i].size(), 59u);
  }
  for (const size_t known : {1, 33, 57}) {
    std::vector<DecodePrompt> cut = prompts;
    for (int i = 0; i < 3; ++i) {
      for (size_t t = 0; t < known; ++t) cut[i].more_output.push_back(whole[i][t].id);
    }
    const auto sinks = world_.StartTogether(cut, sampling);
    for (int i = 0; i < 3; ++i) {
      SCOPED_TRACE(absl::StrCat("sequence ", i, " behind ", known));
      ExpectSameTokens(sinks[i]->Await(), {whole[i].begin() + known, whole[i].end()});
    }
  }
  EXPECT_EQ(world_.store().stats().used_bytes, 0);
}

constexpr ContinuedCase kCases[] = {{"int8", 0}, {"int8", 16}, {"f32", 0}, {"f32", 16}, {"bf16", 0}};
INSTANTIATE_TEST_SUITE_P(DTypes, ContinuedStreams, ::testing::ValuesIn(kCases), [](const auto& info) {
  return absl::StrCat(info.param.dtype, "_rows_", info.param.step_rows);
});

}  // namespace
}  // namespace runahead
