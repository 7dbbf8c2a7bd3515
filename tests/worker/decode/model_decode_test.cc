// The engine with a real forward pass.
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"
#include "tests/worker/decode/decode_world.h"
#include "tests/worker/decode/prompt_rows.h"

namespace runahead {
namespace {

struct DecodeCase {
  DType dtype;
  int64_t head_dim;
};

// FlashInfer's kernels on a GPU take 16-bit heads of 64 and 128, and not those of SmallModel.
SyntheticModel ModelOf(const DecodeCase& of) {
  SyntheticModel model = SmallModel(3);
  if (of.head_dim != model.head_dim) model.heads = 4;
  model.head_dim = of.head_dim;
  return model;
}

class ModelDecode : public ::testing::TestWithParam<DecodeCase> {
 protected:
  DType dtype() const { return GetParam().dtype; }

  void SetUp() override {
    RUNAHEAD_NEED_TEST_DEVICE(dtype());
    world_ = std::make_unique<DecodeWorld>(LoadForTest(WriteSynthetic(ModelOf(GetParam()), "decode"), dtype(), 2), 16);
  }
  const LoadedModel& loaded() const { return world_->loaded(); }

  DecodePrompt Prefill(int index) const { return world_->Prefill(1 + (TestDeviceIsSlow() ? 6 : 41) * index, index); }

  std::unique_ptr<DecodeWorld> world_;
};

// Of all heads in all layers, when `sequences` are decoded: one piece for a query at lengths below 256.
int64_t PiecesOf(const ModelConfig& config, const std::vector<std::vector<Sampled>>& sequences) {
  int64_t tokens = 0;
  for (const std::vector<Sampled>& sequence : sequences) tokens += static_cast<int64_t>(sequence.size());
  return tokens * config.layers * config.heads;
}

class BitwiseDecode : public ModelDecode {};

TEST_P(BitwiseDecode, ManyTogetherGiveBitwiseWhatEachGivesAlone) {
  const int count = TestDeviceIsSlow() ? 5 : 16;
  std::vector<DecodePrompt> prompts;
  std::vector<SamplingOptions> sampling(count);
  for (int i = 0; i < count; ++i) {
    prompts.push_back(Prefill(i));
    if (i % 2 == 1) sampling[i].logprobs = 20;
    if (i % 4 == 3) sampling[i].temperature = 0.8f, sampling[i].seed = i;
  }
  const std::optional<int64_t> pieces_before = FlashPiecesOnTestDevice();
  std::vector<std::vector<Sampled>> alone;
  for (int i = 0; i < count; ++i) alone.push_back(world_->Start(prompts[i], sampling[i])->Await());
  EXPECT_EQ(world_->largest_step(), 1);
  const std::vector<std::shared_ptr<TokenCollector>> sinks = world_->StartTogether(prompts, sampling);
  for (int i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    const std::vector<Sampled>& together = sinks[i]->Await();
    ASSERT_EQ(together.size(), static_cast<size_t>(prompts[i].max_tokens - 1));
    ExpectSameTokens(together, alone[i]);
  }
  EXPECT_GE(world_->largest_step(), count / 2);
  EXPECT_EQ(world_->store().stats().used_bytes, 0);
  if (pieces_before.has_value()) {
    const bool flash = dtype() == DType::kBF16 && GetParam().head_dim >= 64;
    EXPECT_EQ(*FlashPiecesOnTestDevice() - *pieces_before, flash ? 2 * PiecesOf(loaded().model->config(), alone) : 0);
  }
}

TEST_P(ModelDecode, KvThatIsNotFiniteEndsOnlyItsSequence) {
  std::vector<DecodePrompt> prompts;
  for (int i = 1; i < 5; ++i) prompts.push_back(Prefill(i));
  std::vector<std::vector<Sampled>> alone;
  for (const DecodePrompt& prompt : prompts) alone.push_back(world_->Start(prompt, {})->Await());
  prompts[2].kv[1][3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::shared_ptr<TokenCollector>> sinks =
      world_->StartTogether(prompts, std::vector<SamplingOptions>(prompts.size()));
  for (const size_t i : {0, 1, 3}) {
    SCOPED_TRACE(i);
    ExpectSameTokens(sinks[i]->Await(), alone[i]);
  }
  EXPECT_EQ(sinks[2]->AwaitEnd().code(), absl::StatusCode::kInternal);
  EXPECT_GE(world_->largest_step(), 3);
  EXPECT_EQ(world_->store().stats().used_bytes, 0);
}

// Bitwise where a cut there changes nothing of what prefill gives.
TEST_P(ModelDecode, APromptWhoseBeginningCameGivesTheStreamOfAWholeOne) {
  DecodeWorld rows(loaded(), 16, /*step_rows=*/8);
  SamplingOptions sampling;
  sampling.temperature = 0.8f, sampling.seed = 5, sampling.logprobs = 20;
  const DecodePrompt prompt = Prefill(TestDeviceIsSlow() ? 2 : 14);
  const auto tokens = static_cast<int64_t>(prompt.ids.size());
  const std::vector<Sampled> whole = world_->Start(prompt, sampling)->Await();
  const ComputedPrompt in_one = PrefillInPasses(loaded(), prompt.ids, {tokens});
  for (const int64_t handed : {int64_t{0}, tokens / 2, tokens - 1}) {
    SCOPED_TRACE(handed);
    const std::vector<Sampled> got = rows.Start(prompt, sampling, handed)->Await();
    ASSERT_EQ(got.size(), whole.size());
    std::vector<int64_t> cuts = {tokens};
    if (handed > 0) cuts.insert(cuts.begin(), handed);
    if (SameBits(PrefillInPasses(loaded(), prompt.ids, cuts), in_one) && loaded().device->host_reads_device_memory()) {
      ExpectSameTokens(got, whole);
    }
  }
  EXPECT_EQ(rows.store().stats().used_bytes, 0);
}

// Against the plain forward pass over one buffer, which knows no store and no blocks.
TEST_P(ModelDecode, GivesTheTokensOfThePlainPass) {
  for (const int index : {0, 3, 14}) {
    const DecodePrompt prompt = Prefill(index);
    const std::vector<Sampled> tokens = world_->Start(prompt, {})->Await();
    SequenceRunner runner(loaded(), static_cast<int64_t>(prompt.ids.size()) + prompt.max_tokens);
    runner.Append(prompt.ids, false, false);
    int32_t input = prompt.first_token;
    for (const Sampled& token : tokens) {
      EXPECT_EQ(token.id, TopOf(runner.Append({input}, true, false).back()).id);
      input = token.id;
    }
  }
}

std::string CaseName(const ::testing::TestParamInfo<DecodeCase>& info) {
  return std::string(DTypeName(info.param.dtype)) + "_" + std::to_string(info.param.head_dim);
}

constexpr DecodeCase kSmall[] = {{DType::kF32, 16}, {DType::kBF16, 16}};
INSTANTIATE_TEST_SUITE_P(Small, ModelDecode, ::testing::ValuesIn(kSmall), CaseName);
INSTANTIATE_TEST_SUITE_P(Small, BitwiseDecode, ::testing::ValuesIn(kSmall), CaseName);
constexpr DecodeCase kFlash[] = {{DType::kBF16, 64}, {DType::kBF16, 128}};
INSTANTIATE_TEST_SUITE_P(Flash, BitwiseDecode, ::testing::ValuesIn(kFlash), CaseName);

}  // namespace
}  // namespace runahead
