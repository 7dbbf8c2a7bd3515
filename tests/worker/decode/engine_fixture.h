// What every test of the engine starts from: a store, a model whose tokens are known, and a door before each pass.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/await_change.h"
#include "tests/testing/fake_clock.h"
#include "tests/worker/decode/collecting_sink.h"
#include "tests/worker/decode/hash_model.h"
#include "tests/worker/decode/hash_sequences.h"
#include "worker/decode/engine.h"

namespace runahead::testing {

// A door that starts open; while it is shut, whoever comes waits until it is let through.
class Door {
 public:
  void Shut() { Set(0); }
  void LetPass(int count) { Set(count); }
  void Open() { Set(kAll); }
  void Pass() {
    MutexLock lock(mu_);
    ++came_;
    changed_.NotifyAll();
    ChangeWait wait("the test opens the door");
    while (let_ == 0) {
      if (!wait.Next(mu_, changed_)) let_ = kAll;
    }
    if (let_ != kAll) --let_;
  }
  // How often somebody has come to the door.
  int came() {
    MutexLock lock(mu_);
    return came_;
  }
  // Until somebody has come to the door `count` times in all.
  void AwaitComing(int count) {
    MutexLock lock(mu_);
    ChangeWait wait(absl::StrCat("somebody has come to the door ", count, " times"));
    while (came_ < count) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }

 private:
  static constexpr int kAll = -1;
  void Set(int let) {
    MutexLock lock(mu_);
    let_ = let;
    changed_.NotifyAll();
  }
  Mutex mu_;
  CondVar changed_;
  int let_ RUNAHEAD_GUARDED_BY(mu_) = kAll;
  int came_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

class DecodeEngineTest : public ::testing::Test {
 protected:
  DecodeEngineTest() {
    model_ = std::make_shared<HashModel>(device_);
    model_->on_pass = [this] { door_.Pass(); };
    model_->fail = [this](absl::Span<const int32_t> at) {
      ++passes_;
      const bool fails = fail_ || std::any_of(at.begin(), at.end(), [this](int32_t p) { return bad_.contains(p); });
      return fails ? absl::InvalidArgumentError("the fake has had enough") : absl::OkStatus();
    };
    MakeStore(64);
    MakeEngine(16);
  }

  // Before the engine that is to decode in it; the one of before is gone.
  void MakeStore(int64_t blocks) {
    engine_ = nullptr;
    absl::StatusOr<std::unique_ptr<KvStore>> store =
        KvStore::Create({HashModel::kLayers, 16, blocks * kKvBlockTokens, 5}, device_, clock_);
    RUNAHEAD_CHECK(store.ok());
    store_ = *std::move(store);
  }

  void MakeEngine(int64_t max_batch, int64_t step_rows = 0) {
    engine_ = nullptr;
    DecodeEngineOptions options;
    options.max_batch = max_batch;
    options.step_rows = step_rows;
    options.progress = progress_;
    options.grammars = grammars_;
    steps_.clear();
    options.on_step = [this](const DecodeStep& step) {
      steps_.push_back(step);
      largest_step_ = std::max<int64_t>(largest_step_, step.batch_size);
    };
    options.on_parking = [this](const DecodeParking& parking) {
      if (on_parking_) on_parking_(parking);
      if (parking.one_more) ++parkings_;
    };
    absl::StatusOr<std::unique_ptr<DecodeEngine>> engine =
        DecodeEngine::Create(device_, model_, *store_, std::move(options), clock_);
    RUNAHEAD_CHECK(engine.ok());
    engine_ = *std::move(engine);
  }

  DecodeSequence MakeSequence(int seed, int64_t prompt, int64_t max_tokens) {
    return MakeSequence(seed, prompt, max_tokens, prompt);
  }
  // Of whose prompt the first `handed` tokens are handed off.
  DecodeSequence MakeSequence(int seed, int64_t prompt, int64_t max_tokens, int64_t handed) {
    return MakeHashSequence(*store_, seed, prompt, max_tokens, handed);
  }
  // What the hand-off brings.
  void Fill(const DecodeSequence& sequence) { FillHashKv(*store_, sequence); }

  std::shared_ptr<CollectingSink> Add(const DecodeSequence& sequence) {
    auto sink = std::make_shared<CollectingSink>();
    const absl::StatusOr<SequenceNumber> number = engine_->Add(sequence, sink);
    EXPECT_TRUE(number.ok()) << number.status();
    last_added_ = number.value_or(0);
    return sink;
  }

  void ExpectNothingHeld() {
    EXPECT_EQ(store_->stats().leases, 0);
    EXPECT_EQ(store_->stats().used_bytes, 0);
  }

  HashDevice device_;
  FakeClock clock_;
  const std::shared_ptr<ProgressMeter> progress_ = std::make_shared<ProgressMeter>(clock_);  // of all engines
  std::shared_ptr<GrammarSource> grammars_;  // for engines made from then on
  Door door_;
  std::atomic<bool> fail_{false};  // every pass
  std::set<int32_t> bad_;          // positions: a pass that has one of them fails
  std::atomic<int> passes_{0};
  std::atomic<int64_t> largest_step_{0};
  std::vector<DecodeStep> steps_;                         // the engine's; to be read when it is gone
  std::function<void(const DecodeParking&)> on_parking_;  // on the engine's thread; set before it runs
  std::atomic<int> parkings_{0};                          // after on_parking_
  SequenceNumber last_added_ = 0;
  std::shared_ptr<HashModel> model_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<DecodeEngine> engine_;
};

}  // namespace runahead::testing
