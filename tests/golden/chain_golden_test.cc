// The quick-start model on a chain: logits and KV are those of one worker, and a text's scores transformers'.
#include <gtest/gtest.h>

#include "tests/golden/expect_scores.h"
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

TEST(ChainGolden, ScoresOfEveryWidthAreThoseOfTransformers) {
  if (QuickStartModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model; tests/run sets it";
  ExpectScores(LoadForTest(QuickStartModelPath(), DType::kF32, 2), ReadGoldenScores().front());
}

}  // namespace
}  // namespace runahead
