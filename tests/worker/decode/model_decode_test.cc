// The engine with a real forward pass.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"
#include "worker/decode/engine.h"

namespace runahead {
namespace {

class Collector final : public DecodeSink {
 public:
  void OnToken(Sampled token) override { tokens_.push_back(std::move(token)); }
  void OnEnd(absl::Status status) override { end_.Fire(std::move(status)); }
  absl::Status AwaitEnd() const { return end_.event().Wait(); }
  // The tokens, once the sequence has ended well.
  const std::vector<Sampled>& Await() {
    const absl::Status status = AwaitEnd();
    EXPECT_TRUE(status.ok()) << status;
    return tokens_;
  }

 private:
  std::vector<Sampled> tokens_;
  EventSource end_;
};

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
    loaded_ = LoadForTest(WriteSynthetic(ModelOf(GetParam()), "decode"), dtype(), 2);
    const KvStoreOptions options{loaded_.model->config().layers, loaded_.model->kv_row_bytes(), 64 * kKvBlockTokens, 1};
    absl::StatusOr<std::unique_ptr<KvStore>> store = KvStore::Create(options, *loaded_.device, RealClock());
    RUNAHEAD_CHECK(store.ok());
    store_ = *std::move(store);
    DecodeEngineOptions engine_options;
    engine_options.max_batch = 16;
    engine_options.on_step = [this](const DecodeStep& step) { OnStep(step); };
    absl::StatusOr<std::unique_ptr<DecodeEngine>> engine =
        DecodeEngine::Create(*loaded_.device, loaded_.model, *store_, std::move(engine_options));
    RUNAHEAD_CHECK(engine.ok());
    engine_ = *std::move(engine);
  }

  void OnStep(const DecodeStep& step) {
    MutexLock lock(mu_);
    largest_step_ = std::max(largest_step_, step.batch_size);
    while (held_) changed_.Wait(mu_);
  }
  void Hold(bool held) {
    MutexLock lock(mu_);
    held_ = held;
    changed_.NotifyAll();
  }
  int64_t largest_step() {
    MutexLock lock(mu_);
    return largest_step_;
  }

  struct Prompt {
    std::vector<int32_t> ids;
    int32_t first_token = 0;
    std::vector<std::vector<float>> kv;  // a layer each
    int64_t max_tokens = 0;
  };
  Prompt Prefill(int index) const {
    Prompt prompt;
    for (int i = 0; i < 1 + (TestDeviceIsSlow() ? 6 : 41) * index; ++i)
      prompt.ids.push_back((i * 37 + index * 11) % 320);
    SequenceRunner runner(loaded_, static_cast<int64_t>(prompt.ids.size()));
    prompt.first_token = TopOf(runner.Append(prompt.ids, false, false).back()).id;
    for (int64_t layer = 0; layer < loaded_.model->config().layers; ++layer) prompt.kv.push_back(runner.Kv(layer));
    prompt.max_tokens = 12 + index % 5;
    return prompt;
  }

  void Write(const LeaseId& lease, const Prompt& prompt) {
    for (size_t layer = 0; layer < prompt.kv.size(); ++layer) {
      absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, layer, 0, prompt.ids.size());
      ASSERT_TRUE(write.ok());
      const float* from = prompt.kv[layer].data();
      for (const BufferRef& ref : write->destination()) {
        if (dtype() == DType::kF32) {
          std::memcpy(ref.data(), from, ref.size);
          from += ref.size / 4;
          continue;
        }
        BFloat16* to = reinterpret_cast<BFloat16*>(ref.data());
        for (size_t i = 0; i < ref.size / 2; ++i) to[i] = ToBFloat16(*from++);
      }
      ASSERT_TRUE(write->Commit().Wait().ok());
    }
  }

  std::shared_ptr<Collector> Start(const Prompt& prompt, const SamplingOptions& sampling) {
    const absl::StatusOr<LeaseId> lease =
        store_->Reserve(prompt.ids.size(), static_cast<int64_t>(prompt.ids.size()) + prompt.max_tokens);
    RUNAHEAD_CHECK(lease.ok());
    Write(*lease, prompt);
    auto sink = std::make_shared<Collector>();
    const absl::StatusOr<SequenceNumber> number =
        engine_->Add({*lease, prompt.ids, prompt.first_token, prompt.max_tokens, sampling, {}}, sink);
    EXPECT_TRUE(number.ok()) << number.status();
    return sink;
  }

  LoadedModel loaded_;
  std::unique_ptr<KvStore> store_;
  Mutex mu_;
  CondVar changed_;
  bool held_ RUNAHEAD_GUARDED_BY(mu_) = false;
  int64_t largest_step_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::unique_ptr<DecodeEngine> engine_;
};

// Of all heads in all layers, when `sequences` are decoded: one piece for a query at lengths below 256.
int64_t PiecesOf(const ModelConfig& config, const std::vector<std::vector<Sampled>>& sequences) {
  int64_t tokens = 0;
  for (const std::vector<Sampled>& sequence : sequences) tokens += static_cast<int64_t>(sequence.size());
  return tokens * config.layers * config.heads;
}

class BitwiseDecode : public ModelDecode {};

// Twenty logprobs a token are as good as logits: they are compared to the bit.
TEST_P(BitwiseDecode, ManyTogetherGiveBitwiseWhatEachGivesAlone) {
  const int count = TestDeviceIsSlow() ? 5 : 16;
  std::vector<Prompt> prompts;
  std::vector<SamplingOptions> sampling(count);
  for (int i = 0; i < count; ++i) {
    prompts.push_back(Prefill(i));
    if (i % 2 == 1) sampling[i].logprobs = 20;
    if (i % 4 == 3) sampling[i].temperature = 0.8f, sampling[i].seed = i;
  }
  const std::optional<int64_t> pieces_before = FlashPiecesOnTestDevice();
  std::vector<std::vector<Sampled>> alone;
  for (int i = 0; i < count; ++i) alone.push_back(Start(prompts[i], sampling[i])->Await());
  EXPECT_EQ(largest_step(), 1);
  Hold(true);  // the first step ends when all are there
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int i = 0; i < count; ++i) sinks.push_back(Start(prompts[i], sampling[i]));
  Hold(false);
  for (int i = 0; i < count; ++i) {
    const std::vector<Sampled>& together = sinks[i]->Await();
    ASSERT_EQ(together.size(), static_cast<size_t>(prompts[i].max_tokens - 1));
    ASSERT_EQ(together.size(), alone[i].size());
    for (size_t t = 0; t < together.size(); ++t) {
      ASSERT_EQ(together[t].id, alone[i][t].id) << "sequence " << i << " token " << t;
      ASSERT_EQ(together[t].logprobs.size(), alone[i][t].logprobs.size());
      for (size_t k = 0; k < together[t].logprobs.size(); ++k) {
        ASSERT_EQ(together[t].logprobs[k].id, alone[i][t].logprobs[k].id);
        ASSERT_EQ(together[t].logprobs[k].logprob, alone[i][t].logprobs[k].logprob);
      }
    }
  }
  EXPECT_GE(largest_step(), count / 2);
  EXPECT_EQ(store_->stats().used_bytes, 0);
  if (pieces_before.has_value()) {
    const bool flash = dtype() == DType::kBF16 && GetParam().head_dim >= 64;
    EXPECT_EQ(*FlashPiecesOnTestDevice() - *pieces_before, flash ? 2 * PiecesOf(loaded_.model->config(), alone) : 0);
  }
}

TEST_P(ModelDecode, KvThatIsNotFiniteEndsOnlyItsSequence) {
  std::vector<Prompt> prompts;
  for (int i = 1; i < 5; ++i) prompts.push_back(Prefill(i));
  std::vector<std::vector<Sampled>> alone;
  for (const Prompt& prompt : prompts) alone.push_back(Start(prompt, {})->Await());
  prompts[2].kv[1][3] = std::numeric_limits<float>::quiet_NaN();
  Hold(true);
  std::vector<std::shared_ptr<Collector>> sinks;
  for (const Prompt& prompt : prompts) sinks.push_back(Start(prompt, {}));
  Hold(false);
  for (const size_t i : {0, 1, 3}) {
    const std::vector<Sampled>& together = sinks[i]->Await();
    ASSERT_EQ(together.size(), alone[i].size());
    for (size_t t = 0; t < together.size(); ++t) EXPECT_EQ(together[t].id, alone[i][t].id) << i << " " << t;
  }
  EXPECT_EQ(sinks[2]->AwaitEnd().code(), absl::StatusCode::kInternal);
  EXPECT_GE(largest_step(), 3);
  EXPECT_EQ(store_->stats().used_bytes, 0);
}

// Against the plain forward pass over one buffer, which knows no store and no blocks.
TEST_P(ModelDecode, GivesTheTokensOfThePlainPass) {
  for (const int index : {0, 3, 14}) {
    const Prompt prompt = Prefill(index);
    const std::vector<Sampled> tokens = Start(prompt, {})->Await();
    SequenceRunner runner(loaded_, static_cast<int64_t>(prompt.ids.size()) + prompt.max_tokens);
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
