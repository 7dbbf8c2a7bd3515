// The quick-start model on a chain: logits and KV are those of one worker, and a text's scores transformers'.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/golden/golden_files.h"
#include "tests/testing/chain_fixture.h"

namespace runahead {
namespace {

TEST(ChainGolden, TwoPartitionsOfALongPromptGiveTheLogitsAndKvOfOneWorker) {
  if (QuickStartModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model; tests/run sets it";
  const LoadedModel loaded = LoadForTest(QuickStartModelPath(), DType::kF32, 2);
  std::vector<int32_t> ids;
  for (const GoldenPrompt& prompt : ReadGoldenPrompts()) {
    if (prompt.ids.size() > ids.size()) ids = prompt.ids;
  }
  const int64_t tokens = static_cast<int64_t>(ids.size());
  ASSERT_GT(tokens, 500);
  const ExpectedRun plain = PlainRun(loaded, ids);
  for (const std::vector<int64_t>& bounds :
       std::vector<std::vector<int64_t>>{{0, tokens * 6 / 10, tokens}, {0, 1, tokens / 2, tokens}}) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    TestChain chain(loaded, static_cast<int>(bounds.size()) - 1, tokens);
    ExpectRun(RunWhole(loaded, chain, 1, bounds, ids), plain);
  }
}

// What each token of the text was given, by the member whose part ends before it, comes to transformers' perplexity.
TEST(ChainGolden, ScoresOfEveryWidthComeToThePerplexityOfTransformers) {
  if (QuickStartModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model; tests/run sets it";
  const LoadedModel loaded = LoadForTest(QuickStartModelPath(), DType::kF32, 2);
  const GoldenPerplexity golden = ReadGoldenPerplexity();
  std::vector<int32_t> ids = golden.prompt;
  ids.insert(ids.end(), golden.forced.begin(), golden.forced.end());
  const auto tokens = static_cast<int64_t>(ids.size());
  for (const std::vector<int64_t>& bounds :
       std::vector<std::vector<int64_t>>{{0, tokens}, {0, 350, tokens}, {0, 200, 410, tokens}}) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    const int parts = static_cast<int>(bounds.size()) - 1;
    TestChain chain(loaded, parts, tokens);
    for (int part = 0; part < parts; ++part) {
      PrefillJob job = chain.JobOf(1, 0, part, bounds, ids, {}, true, absl::InfiniteFuture());
      job.prompt_logprobs = 0;
      if (!job.tail()) job.next_id = ids[job.end()];
      chain.member(part).stage->Start(std::move(job));
    }
    std::vector<TokenLogprobPairs> scores;  // of ids[1:]
    for (int part = 0; part < parts; ++part) {
      ASSERT_EQ(chain.member(part).news.AwaitDone(1), absl::OkStatus());
      const auto own = chain.member(part).news.scores(1);
      scores.insert(scores.end(), own.begin(), own.end());
    }
    ASSERT_EQ(scores.size() + 1, ids.size());
    const size_t scored = golden.forced.size() - 1;  // transformers' are of forced[1:]
    double sum = 0;
    for (size_t i = scores.size() - scored; i < scores.size(); ++i) sum -= scores[i][0].logprob;
    const double perplexity = golden.perplexity.at(16);
    EXPECT_NEAR(std::exp(sum / static_cast<double>(scored)), perplexity, 1e-4 * perplexity);
  }
}

}  // namespace
}  // namespace runahead
