// The engine with a real forward pass: sequences whose KV comes from a plain pass, decoded over a store.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"
#include "worker/decode/engine.h"

namespace runahead {

class TokenCollector final : public DecodeSink {
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

struct DecodePrompt {
  std::vector<int32_t> ids;
  int32_t first_token = 0;
  std::vector<std::vector<float>> kv;  // a layer each
  int64_t max_tokens = 0;
};

class DecodeWorld {
 public:
  DecodeWorld(LoadedModel loaded, int64_t max_batch) : loaded_(std::move(loaded)) {
    const KvStoreOptions options{loaded_.model->config().layers, loaded_.model->kv_row_bytes(), 64 * kKvBlockTokens, 1};
    absl::StatusOr<std::unique_ptr<KvStore>> store = KvStore::Create(options, *loaded_.device, RealClock());
    RUNAHEAD_CHECK(store.ok());
    store_ = *std::move(store);
    DecodeEngineOptions engine_options;
    engine_options.max_batch = max_batch;
    engine_options.on_step = [this](const DecodeStep& step) { OnStep(step); };
    absl::StatusOr<std::unique_ptr<DecodeEngine>> engine =
        DecodeEngine::Create(*loaded_.device, loaded_.model, *store_, std::move(engine_options));
    RUNAHEAD_CHECK(engine.ok());
    engine_ = *std::move(engine);
  }

  const LoadedModel& loaded() const { return loaded_; }
  const KvStore& store() const { return *store_; }

  // While held, a step does not end.
  void Hold(bool held) {
    MutexLock lock(mu_);
    held_ = held;
    changed_.NotifyAll();
  }
  int64_t largest_step() {
    MutexLock lock(mu_);
    return largest_step_;
  }

  // `tokens` ids, others for each `index`.
  DecodePrompt Prefill(int64_t tokens, int index) const {
    DecodePrompt prompt;
    for (int64_t i = 0; i < tokens; ++i) prompt.ids.push_back(static_cast<int32_t>((i * 37 + index * 11) % 320));
    SequenceRunner runner(loaded_, tokens);
    prompt.first_token = TopOf(runner.Append(prompt.ids, false, false).back()).id;
    for (int64_t layer = 0; layer < loaded_.model->config().layers; ++layer) prompt.kv.push_back(runner.Kv(layer));
    prompt.max_tokens = 12 + index % 5;
    return prompt;
  }

  std::shared_ptr<TokenCollector> Start(const DecodePrompt& prompt, const SamplingOptions& sampling) {
    const absl::StatusOr<LeaseId> lease =
        store_->Reserve(prompt.ids.size(), static_cast<int64_t>(prompt.ids.size()) + prompt.max_tokens);
    RUNAHEAD_CHECK(lease.ok());
    Write(*lease, prompt);
    auto sink = std::make_shared<TokenCollector>();
    const absl::StatusOr<SequenceNumber> number =
        engine_->Add({*lease, prompt.ids, prompt.first_token, prompt.max_tokens, sampling, {}}, sink);
    EXPECT_TRUE(number.ok()) << number.status();
    return sink;
  }
  // All of them before the first step ends.
  std::vector<std::shared_ptr<TokenCollector>> StartTogether(const std::vector<DecodePrompt>& prompts,
                                                             const std::vector<SamplingOptions>& sampling) {
    Hold(true);
    std::vector<std::shared_ptr<TokenCollector>> sinks;
    for (size_t i = 0; i < prompts.size(); ++i) sinks.push_back(Start(prompts[i], sampling[i]));
    Hold(false);
    return sinks;
  }

 private:
  void OnStep(const DecodeStep& step) {
    MutexLock lock(mu_);
    largest_step_ = std::max(largest_step_, step.batch_size);
    while (held_) changed_.Wait(mu_);
  }
  void Write(const LeaseId& lease, const DecodePrompt& prompt) {
    const DType dtype = loaded_.model->kv_dtype();
    for (size_t layer = 0; layer < prompt.kv.size(); ++layer) {
      absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, layer, 0, prompt.ids.size());
      ASSERT_TRUE(write.ok());
      const float* from = prompt.kv[layer].data();
      for (const BufferRef& ref : write->destination()) {
        for (size_t at = 0; at < ref.size; at += DTypeSize(dtype), ++from) {
          const uint16_t half = dtype == DType::kBF16 ? ToBFloat16(*from).bits : ToFloat16(*from).bits;
          std::memcpy(ref.data() + at, dtype == DType::kF32 ? static_cast<const void*>(from) : &half, DTypeSize(dtype));
        }
      }
      ASSERT_TRUE(write->Commit().Wait().ok());
    }
  }

  LoadedModel loaded_;
  std::unique_ptr<KvStore> store_;
  Mutex mu_;
  CondVar changed_;
  bool held_ RUNAHEAD_GUARDED_BY(mu_) = false;
  int64_t largest_step_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::unique_ptr<DecodeEngine> engine_;
};

// Twenty logprobs a token are as good as logits: they are compared to the bit.
inline void ExpectSameTokens(const std::vector<Sampled>& got, const std::vector<Sampled>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t t = 0; t < got.size(); ++t) {
    ASSERT_EQ(got[t].id, want[t].id) << "token " << t;
    ASSERT_EQ(got[t].logprobs.size(), want[t].logprobs.size()) << "token " << t;
    for (size_t k = 0; k < got[t].logprobs.size(); ++k) {
      ASSERT_EQ(got[t].logprobs[k].id, want[t].logprobs[k].id) << "token " << t;
      ASSERT_EQ(got[t].logprobs[k].logprob, want[t].logprobs[k].logprob) << "token " << t;
    }
  }
}

}  // namespace runahead
