// Sequences that are parked and come back, with a real forward pass: their streams are those of a run in which nobody
// is parked.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/small_model.h"
#include "tests/worker/decode/decode_world.h"
#include "tests/worker/decode/int8_model.h"
#include "tests/worker/decode/prompt_rows.h"

namespace runahead {
namespace {

constexpr int64_t kStepRows = 16;
constexpr int kSequences = 5;

// The default of quantised models on CPUs, KV in f16; and f32.
LoadedModel Load(const std::string& dtype) {
  SyntheticModel model = dtype == "int8" ? BlocksModel() : SmallModel(3);
  if (dtype == "int8") model.SetWeightType(WeightType::kQ4_1);
  const std::string path = WriteSynthetic(model, "parked_streams_" + dtype);
  return dtype == "int8" ? LoadInt8(path, 2, DType::kF16) : LoadForTest(path, DType::kF32, 2);
}

class ParkedStreams : public ::testing::TestWithParam<const char*> {
 protected:
  const LoadedModel loaded_ = Load(GetParam());

  std::vector<DecodePrompt> Prompts(const DecodeWorld& world) const {
    std::vector<DecodePrompt> prompts;
    for (int i = 0; i < kSequences; ++i) {
      prompts.push_back(world.Prefill(30 + 60 * i, i));
      prompts.back().max_tokens = 560 - 70 * i;
    }
    return prompts;
  }
  // Greedy ones, and seeded ones, of which some have penalties.
  static std::vector<SamplingOptions> Sampling() {
    std::vector<SamplingOptions> sampling(kSequences);
    for (int i = 0; i < kSequences; ++i) {
      sampling[i].logprobs = 20;
      if (i % 2 == 1) sampling[i].temperature = 0.8f, sampling[i].seed = i;
      if (i == 3) sampling[i].repetition_penalty = 1.2f, sampling[i].frequency_penalty = 0.2f;
    }
    return sampling;
  }
  static std::vector<std::vector<Sampled>> Run(DecodeWorld& world, const std::vector<DecodePrompt>& prompts) {
    std::vector<std::vector<Sampled>> streams;
    for (const auto& sink : world.StartTogether(prompts, Sampling())) streams.push_back(sink->Await());
    return streams;
  }
  // Whether a prompt's rows have, computed here in passes, the bits that prefill gave them.
  bool RowsAreThoseOfPrefill(const std::vector<int32_t>& ids) const {
    const auto tokens = static_cast<int64_t>(ids.size());
    const ComputedPrompt whole = PrefillInPasses(loaded_, ids, {tokens});
    return SameBits(ContinueInStore(loaded_, {ids}, {whole}, {0, kStepRows, tokens}).front(), whole);
  }
};

TEST_P(ParkedStreams, AreThoseOfARunInWhichNobodyIsParked) {
  DecodeWorld large(loaded_, 8, kStepRows, 64, /*grows=*/true), small(loaded_, 8, kStepRows, 7, /*grows=*/true);
  const std::vector<DecodePrompt> prompts = Prompts(large);
  const std::vector<std::vector<Sampled>> expected = Run(large, prompts), got = Run(small, prompts);
  EXPECT_EQ(large.parkings(), 0);
  EXPECT_GE(small.parkings(), 2);
  for (int i = 0; i < kSequences; ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(static_cast<int64_t>(got[i].size()), prompts[i].max_tokens - 1);
    // Else draws near a border might fall to its other side.
    EXPECT_TRUE(RowsAreThoseOfPrefill(prompts[i].ids));
    ExpectSameTokens(got[i], expected[i]);
  }
  std::cout << GetParam() << ": " << small.parkings() << " parkings\n";
  EXPECT_EQ(small.store().stats().promised_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, ParkedStreams, ::testing::Values("int8", "f32"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace runahead
