// Every family through the loops that all of them share: chains and TSP of one to three workers, then decode from a
// store, against transformers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/golden/expect_scores.h"
#include "tests/golden/golden_files.h"
#include "tests/testing/chain_fixture.h"
#include "tests/testing/test_device.h"
#include "tests/worker/decode/collecting_sink.h"
#include "worker/decode/engine.h"

namespace runahead {
namespace {

using testing::CollectingSink;

const std::set<std::string> kFamilies = {"falcon", "gemma2", "gemma3", "llama",     "opt",
                                         "phi3",   "qwen2",  "qwen3",  "starcoder2"};

// Differences of logits, which is what differences of logprobs are.
void ExpectTop10Of(const std::vector<TokenLogprobPair>& logprobs, const GoldenPrompt& prompt) {
  const auto of = [&](int32_t id) {
    const auto found =
        std::find_if(logprobs.begin(), logprobs.end(), [&](const TokenLogprobPair& pair) { return pair.id == id; });
    EXPECT_NE(found, logprobs.end()) << "token " << id;
    return found == logprobs.end() ? 0.0 : static_cast<double>(found->logprob);
  };
  const auto [best, largest] = prompt.top10.front();
  for (const auto& [id, logit] : prompt.top10) {
    EXPECT_NEAR(of(id) - of(best), logit - largest, 2 * RowTolerance(largest)) << "token " << id;
  }
}

// Decodes from what the chain handed off, in a store of its own.
void ExpectDecoded(const LoadedModel& loaded, const WholeRun& run, const GoldenPrompt& prompt) {
  const auto tokens = static_cast<int64_t>(prompt.ids.size()), most = static_cast<int64_t>(prompt.greedy.size());
  const auto store = KvStore::Create({.layers = loaded.model->config().layers,
                                      .row_bytes = loaded.model->kv_row_bytes(),
                                      .capacity_tokens = tokens + most + kKvBlockTokens,
                                      .windows = loaded.model->windows()},
                                     *loaded.device, RealClock());
  ASSERT_TRUE(store.ok()) << store.status();
  const auto engine = DecodeEngine::Create(*loaded.device, loaded.model, **store, {});
  ASSERT_TRUE(engine.ok()) << engine.status();
  DecodeSequence sequence;
  sequence.lease = *(*store)->Reserve({.prompt_tokens = tokens, .total_tokens = tokens + most});
  sequence.prompt_ids = prompt.ids;
  sequence.output_ids = {run.token.id};
  sequence.max_tokens = most;
  for (size_t layer = 0; layer < run.kv.size(); ++layer) {
    auto write = (*store)->BeginWrite(sequence.lease, static_cast<int64_t>(layer), run.begins[layer], tokens);
    ASSERT_TRUE(write.ok()) << write.status();
    size_t done = 0;
    for (const BufferRef& to : write->destination()) {
      std::memcpy(to.data(), run.kv[layer].data() + done, to.size);
      done += to.size;
    }
    ASSERT_TRUE(write->Commit().Wait().ok());
  }
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE((*engine)->Add(std::move(sequence), sink).ok());
  EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(sink->ids(), std::vector<int32_t>(prompt.greedy.begin() + 1, prompt.greedy.end()));
}

// As many parts as asked for, none of them like another.
std::vector<int64_t> Bounds(int64_t tokens, int parts) {
  switch (parts) {
    case 1:
      return {0, tokens};
    case 2:
      return {0, (2 * tokens + 2) / 3, tokens};
    default:
      return {0, tokens / 2, tokens - 1, tokens};
  }
}

// The checkpoint that make_synthetic_gguf makes of these flags, as a file with this name.
LoadedModel Synthetic(const std::vector<std::string>& flags, const std::string& name) {
  const std::string make = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "make_synthetic_gguf";
  const std::string path = absl::StrCat(::testing::TempDir(), name);
  EXPECT_EQ(std::system(absl::StrCat(make, " ", absl::StrJoin(flags, " "), " ", path).c_str()), 0);
  return LoadForTest(path, DType::kF32, 2);
}

TEST(FamilyGolden, ChainsAndDecodeGiveWhatTransformersGives) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  std::set<std::string> families;
  for (const GoldenCheckpoint& checkpoint : ReadGoldenCheckpoints()) {
    SCOPED_TRACE(absl::StrJoin(checkpoint.flags, " "));
    const LoadedModel loaded = Synthetic(checkpoint.flags, absl::StrCat("family-", families.size(), ".gguf"));
    const std::string family = *loaded.file->GetString("general.architecture");
    if (TestDeviceIsSlow() && families.contains(family)) continue;
    families.insert(family);
    for (const GoldenPrompt& prompt : checkpoint.prompts) {
      const auto tokens = static_cast<int64_t>(prompt.ids.size());
      if (TestDeviceIsSlow() && tokens > 40) continue;
      const ExpectedRun plain = PlainRun(loaded, prompt.ids);
      for (int width = 1; width <= std::min<int64_t>(3, tokens); ++width) {
        SCOPED_TRACE(absl::StrCat(tokens, " tokens on ", width, " workers"));
        TestChain chain(loaded, width, tokens);
        const WholeRun run = RunWhole(loaded, chain, 1, Bounds(tokens, width), prompt.ids);
        EXPECT_EQ(run.token.id, prompt.greedy.front());
        ExpectTop10Of(run.token.logprobs, prompt);
        ExpectRun(run, plain);
        ExpectDecoded(loaded, run, prompt);
        if (width < 2) continue;
        TestChain all_to_all(loaded, width, tokens);
        ExpectRun(RunWhole(loaded, all_to_all, 1, Bounds(tokens, width), prompt.ids, Schedule::kTsp), plain);
      }
    }
  }
  EXPECT_EQ(families, kFamilies);
}

TEST(FamilyGolden, ScoresOfEveryWidthAreThoseOfTransformers) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  std::vector<GoldenScores> texts = ReadGoldenScores();
  texts.erase(texts.begin());  // of the quick-start model: chain_golden_test.cc
  if (TestDeviceIsSlow()) texts.resize(1);
  std::set<std::string> families;
  for (const GoldenScores& text : texts) {
    SCOPED_TRACE(absl::StrJoin(text.flags, " "));
    const LoadedModel loaded = Synthetic(text.flags, absl::StrCat("scores-", families.size(), ".gguf"));
    families.insert(*loaded.file->GetString("general.architecture"));
    ExpectScores(loaded, text);
  }
  EXPECT_EQ(families, TestDeviceIsSlow() ? std::set<std::string>{"llama"} : kFamilies);
}

}  // namespace
}  // namespace runahead
