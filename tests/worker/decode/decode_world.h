// The engine with a real forward pass: sequences whose KV comes from a plain pass, decoded over a store.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/await_change.h"
#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"
#include "tests/worker/decode/made_up_kv.h"
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
  std::vector<int32_t> more_output = {};  // that is there already, behind the first token
  std::vector<std::vector<float>> kv;     // a layer each
  int64_t max_tokens = 0;
};

class DecodeWorld {
 public:
  DecodeWorld(LoadedModel loaded, int64_t max_batch, int64_t step_rows = 0)
      : DecodeWorld(std::move(loaded), max_batch, step_rows, 64, /*grows=*/false) {}
  // In a store of `blocks` blocks; where leases grow, nothing is expected beyond the prompt.
  DecodeWorld(LoadedModel loaded, int64_t max_batch, int64_t step_rows, int64_t blocks, bool grows)
      : loaded_(std::move(loaded)), grows_(grows) {
    KvStoreOptions options{loaded_.model->config().layers, loaded_.model->kv_row_bytes(), blocks * kKvBlockTokens, 1};
    options.windows = loaded_.model->windows();
    absl::StatusOr<std::unique_ptr<KvStore>> store = KvStore::Create(options, *loaded_.device, RealClock());
    RUNAHEAD_CHECK(store.ok());
    store_ = *std::move(store);
    DecodeEngineOptions engine_options;
    engine_options.max_batch = max_batch;
    engine_options.step_rows = step_rows;
    engine_options.on_step = [this](const DecodeStep& step) { OnStep(step); };
    engine_options.on_parking = [this](const DecodeParking& parking) { parkings_ += parking.one_more; };
    absl::StatusOr<std::unique_ptr<DecodeEngine>> engine =
        DecodeEngine::Create(*loaded_.device, loaded_.model, *store_, std::move(engine_options));
    RUNAHEAD_CHECK(engine.ok());
    engine_ = *std::move(engine);
  }

  const LoadedModel& loaded() const { return loaded_; }
  const KvStore& store() const { return *store_; }

  // How often a sequence was parked.
  int parkings() const { return parkings_; }

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
    return Start(prompt, sampling, static_cast<int64_t>(prompt.ids.size()));
  }
  // Of whose prompt the first `handed` tokens are handed off.
  std::shared_ptr<TokenCollector> Start(const DecodePrompt& prompt, const SamplingOptions& sampling, int64_t handed) {
    const auto tokens = static_cast<int64_t>(prompt.ids.size());
    LeaseRequest request{.prompt_tokens = tokens, .total_tokens = tokens + prompt.max_tokens};
    if (handed < tokens) request.handed_tokens = handed;
    if (grows_) request.expected_tokens = tokens;
    const absl::StatusOr<LeaseId> lease = store_->Reserve(request);
    RUNAHEAD_CHECK(lease.ok());
    if (handed > 0) Write(*lease, prompt, handed);
    auto sink = std::make_shared<TokenCollector>();
    std::vector<int32_t> output = prompt.more_output;
    output.insert(output.begin(), prompt.first_token);
    const absl::StatusOr<SequenceNumber> number = engine_->Add({.lease = *lease,
                                                                .prompt_ids = prompt.ids,
                                                                .output_ids = std::move(output),
                                                                .max_tokens = prompt.max_tokens,
                                                                .sampling = sampling,
                                                                .stop_ids = {}},
                                                               sink);
    EXPECT_TRUE(number.ok()) << number.status();
    return sink;
  }
  // Of whose prompt nothing is handed off. As much of it is known as sequences left here, at least `least_known`
  // tokens; 0: none is asked for. The first token is drawn here, too.
  std::shared_ptr<TokenCollector> StartRows(const std::vector<int32_t>& ids, int64_t max_tokens,
                                            const SamplingOptions& sampling, int64_t least_known) {
    const auto tokens = static_cast<int64_t>(ids.size());
    LeaseRequest request{.prompt_tokens = tokens, .total_tokens = tokens + max_tokens};
    if (least_known == 0) request.handed_tokens = 0;
    if (least_known > 0) request.least_known_tokens = least_known, request.prompt_ids = ids;
    const absl::StatusOr<LeaseId> lease = store_->Reserve(request);
    RUNAHEAD_CHECK(lease.ok());
    auto sink = std::make_shared<TokenCollector>();
    DecodeSequence sequence;
    sequence.lease = *lease;
    sequence.prompt_ids = ids;
    sequence.max_tokens = max_tokens;
    sequence.sampling = sampling;
    const absl::StatusOr<SequenceNumber> number = engine_->Add(std::move(sequence), sink);
    EXPECT_TRUE(number.ok()) << number.status();
    return sink;
  }
  // Whether so much is known.
  absl::Status TryKnown(const std::vector<int32_t>& ids, int64_t least_known) {
    const auto tokens = static_cast<int64_t>(ids.size());
    const absl::StatusOr<LeaseId> lease = store_->Reserve(
        {.prompt_tokens = tokens, .total_tokens = tokens + 1, .least_known_tokens = least_known, .prompt_ids = ids});
    if (lease.ok()) store_->Release(*lease);
    return lease.status();
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
    testing::ChangeWait wait("the test lets the steps go on");
    while (held_) {
      if (!wait.Next(mu_, changed_)) break;
    }
  }
  void Write(const LeaseId& lease, const DecodePrompt& prompt, int64_t tokens) {
    for (size_t layer = 0; layer < prompt.kv.size(); ++layer) {
      const float* from = prompt.kv[layer].data();
      WriteRows(*store_, lease, static_cast<int64_t>(layer), tokens, loaded_.model->kv_dtype(),
                [&] { return *from++; });
    }
  }

  LoadedModel loaded_;
  const bool grows_;
  std::unique_ptr<KvStore> store_;
  std::atomic<int> parkings_ = 0;
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
