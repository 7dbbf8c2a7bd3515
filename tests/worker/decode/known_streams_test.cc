// Prompts that begin with KV that others left, with a real forward pass: their streams are those of a run that knows
// nothing.
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/kv_table.h"
#include "tests/testing/small_family.h"
#include "tests/worker/decode/decode_world.h"
#include "tests/worker/decode/int8_model.h"
#include "tests/worker/decode/prompt_rows.h"

namespace runahead {
namespace {

constexpr int64_t kStepRows = 16;

// The default of quantised models on CPUs, KV in f16; and f32.
LoadedModel LoadKnown(const std::string& dtype) {
  SyntheticModel model = dtype == "int8" ? BlocksModel() : SmallModel(3);
  if (dtype == "int8") model.SetWeightType(WeightType::kQ4_1);
  const std::string path = WriteSynthetic(model, "known_streams_" + dtype);
  return dtype == "int8" ? LoadInt8(path, 2, DType::kF16) : LoadForTest(path, DType::kF32, 2);
}

// Ids of which each is another for each `kind`.
std::vector<int32_t> TextOf(int64_t count, int64_t kind) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * 37 + kind * 11) % 320));
  return ids;
}

std::vector<int32_t> Behind(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// The rule of f32: a greedy token may be another where the next likeliest one is nearly as likely.
bool MayDiffer(const Sampled& token) {
  return token.logprobs[0].logprob - token.logprobs[1].logprob < 1e-3;
}

SamplingOptions Greedy() {
  SamplingOptions sampling;
  sampling.logprobs = 20;
  return sampling;
}

class KnownStreams : public ::testing::TestWithParam<const char*> {
 protected:
  // Of a world of its own, where nothing is known.
  std::vector<Sampled> Cold(const std::vector<int32_t>& prompt) {
    DecodeWorld world(loaded_, 8, kStepRows);
    return world.StartRows(prompt, 30, Greedy(), /*least_known=*/0)->Await();
  }
  std::vector<Sampled> Known(const std::vector<int32_t>& prompt, int64_t known) {
    return world_.StartRows(prompt, 30, Greedy(), known)->Await();
  }
  // Whether a prompt's rows have, behind `cut`, the bits that they have in any other pass.
  bool RowsDoNotDependOnTheCut(const std::vector<int32_t>& ids, int64_t cut) const {
    const auto tokens = static_cast<int64_t>(ids.size());
    const ComputedPrompt whole = PrefillInPasses(loaded_, ids, {tokens});
    return SameBits(ContinueInStore(loaded_, {ids}, {whole}, {cut, tokens}).front(), whole);
  }

  const LoadedModel loaded_ = LoadKnown(GetParam());
  DecodeWorld world_{loaded_, 8, kStepRows};
};

TEST_P(KnownStreams, BehindKnownTokensOfPromptsAreThoseOfAColdRun) {
  const std::vector<int32_t> first = TextOf(300, 1);
  Known(first, 0);
  for (const int64_t known : {40, 256, 299}) {
    SCOPED_TRACE(known);
    std::vector<int32_t> prompt = first;
    if (known < 299) prompt = Behind({first.begin(), first.begin() + known}, TextOf(25, 2));
    if (!RowsDoNotDependOnTheCut(prompt, known)) GTEST_SKIP() << "here prefill's bits depend on the cut";
    ExpectSameTokens(Known(prompt, known), Cold(prompt));
  }
  EXPECT_EQ(world_.store().stats().used_bytes, 0);
}

// KV of the answer is as decode computes it, and not as prefill does: by the rules of numerics.
TEST_P(KnownStreams, BehindAKnownAnswerAreThoseOfAColdRunWithinNumerics) {
  std::vector<int32_t> prompt = TextOf(230, 1);
  double apart = 0;
  int64_t known = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const std::vector<Sampled> answer = Known(prompt, known);
    known = static_cast<int64_t>(prompt.size() + answer.size()) - 1;
    const std::vector<Sampled> cold = Cold(prompt);
    ASSERT_EQ(answer.size(), cold.size());
    for (size_t t = 0; t < answer.size(); ++t) {
      const bool same = answer[t].id == cold[t].id;
      ASSERT_TRUE(same || std::string(GetParam()) != "f32" || MayDiffer(cold[t]))
          << "token " << t << " of turn " << turn;
      if (!same) break;
      apart = std::max<double>(apart, std::abs(answer[t].logprobs[0].logprob - cold[t].logprobs[0].logprob));
    }
    for (const Sampled& token : answer) prompt.push_back(token.id);
    prompt = Behind(prompt, TextOf(20, 3 + turn));
  }
  std::cout << GetParam() << ": log probabilities are " << apart << " apart\n";
  EXPECT_LE(apart, std::string(GetParam()) == "f32" ? 1e-4 : 0.5);
}

INSTANTIATE_TEST_SUITE_P(DTypes, KnownStreams, ::testing::Values("int8", "f32"),
                         [](const auto& info) { return std::string(info.param); });

// Rows that windows hid when the prompt was handed off are NaN here: who read one would give none of these tokens.
TEST(KnownWindowedStreams, GoOnBehindWhatWindowsHidAndNotBeforeIt) {
  const LoadedModel loaded =
      LoadForTest(WriteSynthetic(SmallModelOf(SyntheticFamily::kGemma3, 37), "known_windows"), DType::kF32, 2);
  DecodeWorld world(loaded, 8, kStepRows);
  DecodePrompt prompt = world.Prefill(300, 1);
  prompt.max_tokens = 20;
  const std::vector<int64_t> windows = loaded.model->windows();
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    const auto row = static_cast<int64_t>(prompt.kv[layer].size()) / 300;
    std::fill_n(prompt.kv[layer].begin(), FirstSeen(windows[layer], 300) * row,
                std::numeric_limits<float>::quiet_NaN());
  }
  std::vector<int32_t> ids = prompt.ids;
  ids.push_back(prompt.first_token);
  const std::vector<Sampled> answer = world.Start(prompt, {})->Await();
  for (const Sampled& token : answer) ids.push_back(token.id);
  EXPECT_EQ(world.TryKnown(prompt.ids, 1).code(), absl::StatusCode::kNotFound) << "its last row sees what was hidden";
  EXPECT_EQ(world.TryKnown({ids.begin(), ids.begin() + 301}, 300).code(), absl::StatusCode::kOk);
  const std::vector<int32_t> next = Behind(ids, TextOf(15, 2));
  DecodeWorld cold(loaded, 8, kStepRows);
  const std::vector<Sampled> got = world.StartRows(next, 30, Greedy(), 319)->Await(),
                             want = cold.StartRows(next, 30, Greedy(), 0)->Await();
  ASSERT_EQ(got.size(), want.size());
  for (size_t t = 0; t < got.size(); ++t) {
    if (got[t].id != want[t].id && MayDiffer(want[t])) break;
    ASSERT_EQ(got[t].id, want[t].id) << "token " << t;
  }
}

}  // namespace
}  // namespace runahead
