// KVPR under the decode engine: what sequences leave in the store, and prompts that begin with it.
#include <memory>
#include <vector>

#include "tests/worker/decode/kvpr/kvpr_engine_fixture.h"

namespace runahead {
namespace {

using testing::CollectingSink;

class KvprKnownTest : public KvprEngineTest {
 protected:
  // A prompt of made-up rows behind `known` tokens that sequences left.
  std::shared_ptr<CollectingSink> AddBehind(const std::vector<int32_t>& prompt, int64_t known) {
    DecodeSequence sequence;
    const auto size = static_cast<int64_t>(prompt.size());
    const bool with_x = store_->x_arena() != nullptr;
    const auto lease = store_->Reserve({.prompt_tokens = size,
                                        .total_tokens = size + kTokens,
                                        .with_x = with_x,
                                        .least_known_tokens = known,
                                        .rest_handed = true,
                                        .prompt_ids = prompt});
    EXPECT_TRUE(lease.ok()) << lease.status();
    sequence.lease = *lease;
    EXPECT_EQ(store_->SizeOf(*lease)->with_x, with_x);
    sequence.prompt_ids = prompt;
    sequence.output_ids = {5};
    sequence.max_tokens = kTokens;
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      Fill(sequence.lease, layer, size, SliceKind::kKv, 9, known);
      if (with_x) Fill(sequence.lease, layer, size, SliceKind::kX, 9, known);
    }
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(engine_->Add(std::move(sequence), sink).ok());
    return sink;
  }
  // Whether a prompt may begin with so many tokens.
  bool IsKept(std::vector<int32_t> ids, int64_t tokens) {
    ids.resize(tokens);
    ids.push_back(7);
    const auto lease = store_->Reserve(
        {.prompt_tokens = tokens + 1, .total_tokens = tokens + 1, .least_known_tokens = tokens, .prompt_ids = ids});
    if (lease.ok()) store_->Release(*lease);
    return lease.ok();
  }
};

// What ends leaves its KV in the store, the answer's as its steps wrote it.
TEST_F(KvprKnownTest, AChainsRestBehindWhatEndedGivesWhatPlainDecodeGives) {
  constexpr int64_t kKnown = 2 * kKvBlockTokens;
  const auto run = [&](bool kvpr) {
    MakeEngine(0, kvpr);
    const auto first = Add(4, 490);
    EXPECT_EQ(first->AwaitEnd(), absl::OkStatus());
    std::vector<int32_t> prompt = PromptOf(4, 490);
    prompt.push_back(4);
    const std::vector<int32_t> answer = first->ids();
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    EXPECT_TRUE(IsKept(prompt, static_cast<int64_t>(prompt.size()) - 1)) << "of the last token none computed KV";
    for (int i = 0; i < 100; ++i) prompt.push_back(i);
    const auto next = AddBehind(prompt, kKnown);
    EXPECT_EQ(next->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(engine_->CheckLends(), absl::OkStatus());
    ExpectNothingHeld();
    return next->ids();
  };
  EXPECT_EQ(run(/*kvpr=*/true), run(/*kvpr=*/false));
}

// Four have steps, and the fifth waits for a place.
TEST_F(KvprKnownTest, APromptWhoseKvNobodyHasMadeIsNotKept) {
  MakeEngine(0);
  std::vector<SequenceNumber> numbers(4);
  std::vector<std::shared_ptr<CollectingSink>> run;
  kv_from_ = 256;
  for (int i = 0; i < 4; ++i) run.push_back(Add(20 * i, 300, kManyTokens, &numbers[i]));
  for (const auto& sink : run) sink->AwaitTokens(1);
  EXPECT_TRUE(IsKept(PromptOf(0, 300), 300)) << "from its first token on";
  SequenceNumber waits = 0;
  const auto sink = Add(90, 300, kTokens, &waits);
  engine_->Cancel(waits);
  EXPECT_EQ(sink->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(IsKept(PromptOf(90, 300), 32));
  kv_from_ = 0;
  const auto has_kv = Add(91, 300, kTokens, &waits);
  engine_->Cancel(waits);
  EXPECT_EQ(has_kv->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(IsKept(PromptOf(91, 300), 300));
  for (const SequenceNumber number : numbers) engine_->Cancel(number);
  for (const auto& ended : run) EXPECT_EQ(ended->AwaitEnd().code(), absl::StatusCode::kCancelled);
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
