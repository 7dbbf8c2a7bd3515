// The second real model, Gemma-3-270m in Q4_K_M, against transformers, and its vocabulary against llama.cpp's ids.
#include <gtest/gtest.h>

#include <algorithm>

#include "server/tokenizer/tokenizer.h"
#include "tests/golden/golden_files.h"
#include "tests/testing/chain_fixture.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

class GemmaGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    if (GemmaModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_GEMMA names no model: runahead pull gemma3-270m";
  }
};

TEST_F(GemmaGolden, TextsHaveTheReferencesIds) {
  const auto file = OpenModelFile(GemmaModelPath());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = Tokenizer::FromModel(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  int texts = 0;
  for (const GoldenText& text : ReadGemmaTexts()) {
    const auto ids = (*tokenizer)->Encode(text.text, {.add_bos = text.with_bos});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, text.ids) << text.text;
    ++texts;
  }
  EXPECT_GE(texts, 60);
}

TEST_F(GemmaGolden, F32MatchesEveryToken) {
  const LoadedModel loaded = LoadForTest(GemmaModelPath(), DType::kF32, 2);
  size_t longest = 0;
  for (const GoldenPrompt& prompt : ReadGemmaPrompts()) {
    SCOPED_TRACE(::testing::PrintToString(prompt.ids.size()) + " prompt tokens");
    ExpectGreedy(loaded, prompt);
    longest = std::max(longest, prompt.ids.size());
  }
  EXPECT_GT(longest, 900u) << "longer than the window of local layers";
}

// The border of the parts lies within the window of what comes after it, and the window within the first part.
TEST_F(GemmaGolden, AChainOfThreeGivesTheSameToken) {
  const LoadedModel loaded = LoadForTest(GemmaModelPath(), DType::kF32, 2);
  for (const GoldenPrompt& prompt : ReadGemmaPrompts()) {
    const auto tokens = static_cast<int64_t>(prompt.ids.size());
    if (tokens < 250) continue;
    TestChain chain(loaded, 3, tokens);
    const WholeRun run = RunWhole(loaded, chain, 1, {0, tokens * 3 / 5, tokens * 4 / 5, tokens}, prompt.ids);
    EXPECT_EQ(run.token.id, prompt.greedy.front()) << tokens;
  }
}

}  // namespace
}  // namespace runahead
