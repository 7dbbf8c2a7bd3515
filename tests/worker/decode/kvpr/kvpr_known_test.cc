// KVPR under the decode engine: what sequences leave in the store, and prompts that begin with it.
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/reference_kv_quant.h"
#include "tests/worker/decode/kvpr/kvpr_engine_fixture.h"
#include "worker/handoff/opened_rows.h"

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
    sequence.sampling.logprobs = 20;
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

// Over a store that keeps KV in codes of 8 bits, and no X.
class KvprKnownCodesTest : public KvprKnownTest {
 protected:
  KvprKnownCodesTest() {
    kv_bits_ = 8;
    keeps_x_ = false;
  }

  // Layer by layer, the rows of the prompt's first tokens as the store lends them.
  void ForLent(const std::vector<int32_t>& prompt, int64_t known,
               absl::FunctionRef<void(const std::vector<KvSpan>& of_layer)> use) {
    const auto size = static_cast<int64_t>(prompt.size());
    const LeaseId lease = *store_->Reserve({.prompt_tokens = size,
                                            .total_tokens = size,
                                            .least_known_tokens = known,
                                            .rest_handed = true,
                                            .prompt_ids = prompt});
    {
      const KvStore::Lent lent = *store_->LendKnown(lease, known);
      for (int64_t layer = 0; layer < store_->options().layers; ++layer) use(lent.Spans(layer, 0));
    }
    store_->Release(lease);
  }
  std::vector<std::vector<std::byte>> LentCodes(const std::vector<int32_t>& prompt, int64_t known) {
    std::vector<std::vector<std::byte>> codes;
    ForLent(prompt, known, [&codes](const std::vector<KvSpan>& spans) {
      std::vector<std::byte>& of_layer = codes.emplace_back();
      for (const KvSpan& span : spans) {
        of_layer.insert(of_layer.end(), span.rows.data(), span.rows.data() + span.rows.size);
      }
    });
    return codes;
  }
  // What they stand for, by hand: of each group a scale and a minimum in f16, and 32 codes of a byte (op_params.h).
  static std::vector<float> Dequantised(const std::vector<std::byte>& codes) {
    std::vector<float> values;
    for (size_t at = 0; at < codes.size(); at += 4 + 32) {
      Float16 scale, minimum;
      std::memcpy(&scale, codes.data() + at, sizeof(scale));
      std::memcpy(&minimum, codes.data() + at + 2, sizeof(minimum));
      for (size_t i = 0; i < 32; ++i) {
        values.push_back(ToFloat(minimum) + std::to_integer<int>(codes[at + 4 + i]) * ToFloat(scale));
      }
    }
    return values;
  }
  // A prompt all of which is handed off: these rows, and behind them the made-up ones that AddBehind makes.
  std::shared_ptr<CollectingSink> AddHanded(const std::vector<int32_t>& prompt,
                                            const std::vector<std::vector<float>>& first, int64_t known) {
    DecodeSequence sequence;
    const auto size = static_cast<int64_t>(prompt.size());
    sequence.lease = *store_->Reserve({.prompt_tokens = size, .total_tokens = size + kTokens});
    sequence.prompt_ids = prompt;
    sequence.output_ids = {5};
    sequence.max_tokens = kTokens;
    sequence.sampling.logprobs = 20;
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      auto write = store_->BeginWrite(sequence.lease, layer, 0, known);
      RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
      const auto* from = reinterpret_cast<const std::byte*>(first[layer].data());
      for (const BufferRef& to : write->destination()) {
        std::memcpy(to.data(), from, to.size);
        from += to.size;
      }
      RUNAHEAD_CHECK(write->Commit().Wait().ok());
      Fill(sequence.lease, layer, size, SliceKind::kKv, 9, known);
    }
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(engine_->Add(std::move(sequence), sink).ok());
    return sink;
  }
  static void ExpectBitwise(CollectingSink& actual, CollectingSink& expected) {
    const std::vector<Sampled> one = actual.tokens(), other = expected.tokens();
    ASSERT_EQ(one.size(), static_cast<size_t>(kTokens - 1));
    ASSERT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i].id, other[i].id) << i;
      ASSERT_EQ(one[i].logprobs.size(), other[i].logprobs.size());
      for (size_t k = 0; k < one[i].logprobs.size(); ++k) {
        EXPECT_EQ(one[i].logprobs[k].id, other[i].logprobs[k].id) << i;
        EXPECT_EQ(one[i].logprobs[k].logprob, other[i].logprobs[k].logprob) << i;
      }
    }
  }
};

// Of the first sequence's prompt and answer; the last block is begun. A second engine, of another store, is handed
// what the codes stand for: quantised again they are these very codes, which the test asks it for.
TEST_F(KvprKnownCodesTest, BehindThemItGivesBitwiseWhatOneGivesThatAttendsToWhatTheyStandFor) {
  MakeEngine(0);
  const auto first = Add(4, 490);
  EXPECT_EQ(first->AwaitEnd(), absl::OkStatus());
  std::vector<int32_t> prompt = PromptOf(4, 490);
  prompt.push_back(4);
  const std::vector<int32_t> answer = first->ids();
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  const auto known = static_cast<int64_t>(prompt.size()) - 1;
  ASSERT_TRUE(known > 2 * kKvBlockTokens && known % kKvBlockTokens > 0) << known;
  for (int i = 0; i < 100; ++i) prompt.push_back(i);
  const auto codes = LentCodes(prompt, known);
  const auto behind = AddBehind(prompt, known);
  EXPECT_EQ(behind->AwaitEnd(), absl::OkStatus());
  ExpectNothingHeld();

  MakeEngine(0);
  std::vector<std::vector<float>> rows;
  for (const std::vector<std::byte>& of_layer : codes) rows.push_back(Dequantised(of_layer));
  const auto handed = AddHanded(prompt, rows, known);
  EXPECT_EQ(handed->AwaitEnd(), absl::OkStatus());
  EXPECT_TRUE(LentCodes(prompt, known) == codes);
  ExpectBitwise(*behind, *handed);
  ExpectNothingHeld();
}

// The same where X came instead of KV of the prompt's beginning, which ends within a block; by bits.
class KvprKnownFromXTest : public KvprKnownCodesTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr int64_t kFromX = 384, kPromptOfX = 490;

  KvprKnownFromXTest() {
    kv_bits_ = GetParam();
    keeps_x_ = true;
    kv_from_ = kFromX;
  }

  // What the model makes of the X that came.
  std::vector<float> KvOfX(int seed, int64_t layer) const {
    const ModelConfig& config = model_->config();
    DeviceMemory memory(device_);
    ForwardScratch scratch(*device_);
    const Tensor x = memory.NewTensor(MadeUp(seed, layer, static_cast<size_t>(kFromX * config.hidden)), kFromX);
    const Tensor kv = memory.Empty(kFromX, 2 * config.kv_dim());
    const auto table = *device_->MakeKvTable(memory.stream(), KvLayout::OnePage(kFromX, kFromX));
    EXPECT_TRUE(model_->Recompute({memory.stream(), scratch, *table, 0, kFromX}, layer, x, kv.ref).ok());
    return memory.Read(kv);
  }
  // Of the prompt, by hand: the codes of KV that X gives, and then of that which came, and what they stand for.
  ReferenceGroup ByHand(int seed, int64_t layer) const {
    std::vector<float> kv = KvOfX(seed, layer);
    const int64_t came = (kPromptOfX - kFromX) * 2 * model_->config().kv_dim();
    const std::vector<float> more = MadeUp(seed, layer, static_cast<size_t>(came));
    kv.insert(kv.end(), more.begin(), more.end());
    const KvQuant quant = store_->options().quantisation->quant;
    ReferenceGroup all;
    for (size_t at = 0; at < kv.size(); at += quant.group) {
      const ReferenceGroup group = QuantizeReference(kv.data() + at, quant);
      all.bytes.insert(all.bytes.end(), group.bytes.begin(), group.bytes.end());
      all.values.insert(all.values.end(), group.values.begin(), group.values.end());
    }
    return all;
  }
  // What the head of a later prompt's chain gets.
  std::vector<std::vector<float>> OpenedFor(const std::vector<int32_t>& prompt, int64_t known) {
    std::vector<std::vector<float>> rows;
    OpenedRows opened(store_->options());
    ForLent(prompt, known, [&](const std::vector<KvSpan>& spans) {
      std::vector<float>& of_layer = rows.emplace_back();
      const auto take = [&of_layer](const KvSpan& span) -> absl::StatusOr<Event> {
        const size_t had = of_layer.size();
        of_layer.resize(had + span.rows.size / sizeof(float));
        std::memcpy(of_layer.data() + had, span.rows.data(), span.rows.size);
        return Event();
      };
      EXPECT_EQ(opened.Open(spans, take), absl::OkStatus());
    });
    return rows;
  }
};

// While the first one goes on, whose first step has made the KV. The second engine's store has never seen X.
TEST_P(KvprKnownFromXTest, FromTheFirstStepOnOthersBeginWithWhatTheCodesOfItsKvStandFor) {
  MakeEngine(0);
  SequenceNumber number = 0;
  const auto first = Add(4, kPromptOfX, kManyTokens, &number);
  first->AwaitTokens(1);
  std::vector<int32_t> prompt = PromptOf(4, kPromptOfX);
  for (int i = 0; i < 100; ++i) prompt.push_back(i);
  std::vector<std::vector<std::byte>> codes;
  std::vector<std::vector<float>> rows;
  for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
    ReferenceGroup by_hand = ByHand(4, layer);
    codes.push_back(std::move(by_hand.bytes));
    rows.push_back(std::move(by_hand.values));
  }
  ASSERT_TRUE(IsKept(prompt, kPromptOfX));
  EXPECT_TRUE(LentCodes(prompt, kPromptOfX) == codes);
  EXPECT_TRUE(OpenedFor(prompt, kPromptOfX) == rows);
  const auto behind = AddBehind(prompt, kPromptOfX);
  EXPECT_EQ(behind->AwaitEnd(), absl::OkStatus());
  engine_->Cancel(number);
  EXPECT_EQ(first->AwaitEnd().code(), absl::StatusCode::kCancelled);
  ExpectNothingHeld();

  keeps_x_ = false;
  MakeEngine(0);
  const auto handed = AddHanded(prompt, rows, kPromptOfX);
  EXPECT_EQ(handed->AwaitEnd(), absl::OkStatus());
  EXPECT_TRUE(LentCodes(prompt, kPromptOfX) == codes);
  ExpectBitwise(*behind, *handed);
  ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(Bits, KvprKnownFromXTest, ::testing::Values(4, 8),
                         [](const auto& info) { return "Of" + std::to_string(info.param); });

}  // namespace
}  // namespace runahead
