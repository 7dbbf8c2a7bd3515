// KVPR under the decode engine: sequences that end in the middle of it, in every way, leave nothing behind.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/worker/decode/collecting_sink.h"
#include "tests/worker/decode/fake_form.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/engine.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/decode/kvpr/weight_stream.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

using testing::CollectingSink;

// Of a sequence that is to end by itself; and of one that surely goes on while the test does something.
constexpr int64_t kTokens = 40, kManyTokens = 3000;

// Made-up KV and X, which have nothing to do with each other: where tokens are compared, nothing is recomputed.
class KvprEngineTest : public ::testing::Test {
 protected:
  explicit KvprEngineTest(unsigned more_uses = 0) {
    SyntheticModel model = SmallModel(2);
    model.kv_heads = model.heads;
    const auto file = *OpenGguf(WriteSynthetic(model, "kvpr_engine"));
    CpuDeviceOptions options{.threads = 1, .memory_budget = 64 << 20};
    options.emulated_link = *EmulatedLink::Create({.gbps = 10});
    device_ = *NewCpuDevice(options);
    model_ = *LoadModel(file, device_, kUseDecode | kUseRecompute | more_uses, [](int, int) {});
    level_ = device_->memory_left();
  }

  // Windows of a few blocks.
  void MakeEngine(int64_t recomputed, bool kvpr = true) {
    const ModelConfig& config = model_->config();
    KvStoreOptions options{.layers = config.layers,
                           .row_bytes = model_->kv_row_bytes(),
                           .capacity_tokens = 64 * kKvBlockTokens,
                           .tier = kvpr ? MemoryKind::kHost : MemoryKind::kDevice};
    if (kvpr) options.x_row_bytes = 4 * config.hidden;
    if (kv_bits_ < 16) options.quantisation = KvQuantisation{{kv_bits_, 32}, DType::kF32, host_.get()};
    store_ = *KvStore::Create(options, *device_, RealClock());
    DecodeEngineOptions steps;
    steps.max_batch = 4;
    steps.grammars = grammars_;
    if (kvpr) steps.make_loop = [this, recomputed](Stream& stream) { return MakeLoop(recomputed, stream); };
    engine_ = *DecodeEngine::Create(*device_, model_, *store_, std::move(steps));
  }

  // Ids of a made-up prompt.
  static std::vector<int32_t> PromptOf(int seed, int64_t prompt) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < prompt; ++i) ids.push_back(static_cast<int32_t>((seed + 7 * i) % 320));
    return ids;
  }

  // `output` is there already, behind the first token.
  std::shared_ptr<CollectingSink> Add(int seed, int64_t prompt, int64_t tokens = kTokens,
                                      SequenceNumber* number = nullptr, absl::Span<const int32_t> output = {},
                                      const std::string& form = "") {
    DecodeSequence sequence;
    if (!form.empty()) sequence.rules.structure = {.kind = StructureKind::kRegex, .text = form};
    const bool with_x = store_->x_arena() != nullptr;
    sequence.lease = *store_->Reserve(
        {.prompt_tokens = prompt, .total_tokens = prompt + tokens, .with_x = with_x, .kv_from = kv_from_});
    sequence.request_id = absl::StrCat("request ", seed);
    sequence.prompt_ids = PromptOf(seed, prompt);
    sequence.output_ids = {seed % 320};
    sequence.output_ids.insert(sequence.output_ids.end(), output.begin(), output.end());
    sequence.max_tokens = tokens;
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      Fill(sequence.lease, layer, prompt, SliceKind::kKv, seed, kv_from_);
      if (with_x) Fill(sequence.lease, layer, prompt, SliceKind::kX, seed);
    }
    auto sink = std::make_shared<CollectingSink>();
    const auto added = engine_->Add(std::move(sequence), sink);
    EXPECT_TRUE(added.ok()) << added.status();
    if (number != nullptr) *number = *added;
    return sink;
  }

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
    const auto lease = store_->Reserve({.prompt_tokens = tokens + 1,
                                        .total_tokens = tokens + 1,
                                        .least_known_tokens = tokens,
                                        .prompt_ids = ids});
    if (lease.ok()) store_->Release(*lease);
    return lease.ok();
  }

  // While the engine is there: no lease, nothing resident. Then: the device's memory is what it was.
  void ExpectNothingHeld() {
    EXPECT_EQ(store_->stats().leases, 0);
    EXPECT_EQ(store_->stats().used_bytes, 0);
    if (engine_ != nullptr && resident_ >= 0) {
      EXPECT_EQ(resident_, 0);
    }
    engine_ = nullptr;
    store_ = nullptr;
    EXPECT_EQ(device_->memory_left(), level_);
  }

  std::shared_ptr<Device> device_;
  const std::shared_ptr<Device> host_ = *NewCpuDevice({.threads = 1});
  std::shared_ptr<const Model> model_;
  // Of the engines that are made next.
  int kv_bits_ = 16;
  int64_t kv_from_ = 0;  // and of the leases of Add
  bool x_may_stay_ = false;
  std::shared_ptr<GrammarSource> grammars_;
  std::atomic<int64_t> resident_{-1};  // bytes of all other sequences, as the last one left
  std::atomic<int> idles_{0};
  std::atomic<int64_t> x_resident_{0};  // rows of X that steps found on the device

  Mutex reported_mu_;
  std::vector<KvprSequenceReport> reported_ RUNAHEAD_GUARDED_BY(reported_mu_);  // of sequences, as they left

  size_t level_ = 0;  // memory that the device has left with the model loaded
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<DecodeEngine> engine_;

 private:
  absl::StatusOr<std::unique_ptr<StepLoop>> MakeLoop(int64_t recomputed, Stream& stream) {
    const ModelConfig& config = model_->config();
    const int64_t kv = model_->kv_row_bytes(), x = 4 * config.hidden;
    const int64_t stored = kv_bits_ < 16 ? store_->options().stored_row_bytes() : 0;
    KvprOptions options{.max_rows = 4};
    options.chunk_tokens = 256;
    options.slots = 2;
    options.device_bytes = (2 * 256 + 4 * options.max_rows) * (kv + stored + x) +
                           5 * kKvBlockTokens * kv * config.layers + WeightStream::DeviceBytes(*model_);
    if (kv_bits_ == 16) options.host = host_.get();
    options.on_step = [this](const KvprStep& step) {
      x_resident_ += step.plan.rows.recomputed - step.plan.rows.x_streamed;
    };
    options.on_leave = [this](const KvprSequenceReport& report) {
      resident_ = report.resident_bytes;
      MutexLock lock(reported_mu_);
      reported_.push_back(report);
    };
    options.on_idle = [this](SplitSource&) { ++idles_; };
    LaneCosts costs;
    costs.link_bytes_per_s = 1e9;
    costs.kv_bytes = static_cast<double>(kv);
    costs.x_bytes = static_cast<double>(x);
    std::unique_ptr<SplitSource> split = std::make_unique<FixedSplit>(recomputed, costs, kv_bits_ == 16 ? 256 : 0);
    if (x_may_stay_) split = SplitAt(512);
    return KvprLoop::Create(*model_, *device_, *store_, stream, std::move(split), options);
  }

  void Fill(const LeaseId& lease, int64_t layer, int64_t prompt, SliceKind kind, int seed, int64_t from = 0) {
    auto write = store_->BeginWrite(lease, layer, from, prompt, kind);
    RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
    std::mt19937 random(static_cast<uint32_t>(100 * seed + layer));
    std::normal_distribution<float> normal;
    for (const BufferRef& to : write->destination()) {
      std::vector<float> values(to.size / sizeof(float));
      for (float& value : values) value = normal(random);
      std::memcpy(to.data(), values.data(), to.size);
    }
    RUNAHEAD_CHECK(write->Commit().Wait().ok());
  }
};

TEST_F(KvprEngineTest, WhatIsCancelledLeavesNothingAndChangesNobodysTokens) {
  std::vector<std::vector<int32_t>> expected;
  MakeEngine(0, /*kvpr=*/false);
  for (const int64_t prompt : {700, 300}) {
    const auto sink = Add(static_cast<int>(prompt), prompt);
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    expected.push_back(sink->ids());
  }
  ExpectNothingHeld();
  MakeEngine(0);
  SequenceNumber first = 0, second = 0;
  const auto stays = Add(700, 700), goes = Add(1, 900, kManyTokens, &first);
  goes->AwaitTokens(3);
  const auto stays_too = Add(300, 300), goes_too = Add(2, 20, kManyTokens, &second);
  engine_->Cancel(first);
  goes_too->AwaitTokens(5);
  engine_->Cancel(second);
  EXPECT_EQ(goes->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(goes_too->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stays->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(stays_too->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(stays->ids(), expected[0]);
  EXPECT_EQ(stays_too->ids(), expected[1]);
  ExpectNothingHeld();
}

// With the split fixed each position is computed as it was in the stream that is gone on with.
TEST_F(KvprEngineTest, AnAnswerGoesOnBehindTheOutputThatItHas) {
  for (const int64_t recomputed : {0, 64}) {
    MakeEngine(recomputed);
    const auto whole = Add(3, 600);
    EXPECT_EQ(whole->AwaitEnd(), absl::OkStatus());
    const std::vector<int32_t> expected = whole->ids();
    ASSERT_EQ(expected.size(), kTokens - 1);
    for (const size_t known : {1, 20, 38}) {
      const auto rest = Add(3, 600, kTokens, nullptr, absl::MakeSpan(expected).first(known));
      EXPECT_EQ(rest->AwaitEnd(), absl::OkStatus());
      EXPECT_EQ(rest->ids(), std::vector<int32_t>(expected.begin() + known, expected.end())) << recomputed;
    }
    ExpectNothingHeld();
  }
}

// A row whose mask is late is computed again: by a step that was planned for the row behind it, too.
TEST_F(KvprEngineTest, AMaskThatIsLateChangesNoTokens) {
  std::shared_ptr<CollectingSink> plain;
  int64_t plain_tokens = 0;
  grammars_ = testing::FakeForms([&](const std::string& text) {
    return std::make_shared<testing::FakeForm>([&, late = text == "late"](int64_t) {
      if (late) plain->AwaitTokens(plain_tokens += 3);
    });
  });
  for (const int64_t recomputed : {0, 64}) {
    MakeEngine(recomputed);
    const auto in_time = Add(0, 300, 10, nullptr, {}, "in time");
    EXPECT_EQ(in_time->AwaitEnd(), absl::OkStatus());
    plain = Add(700, 700, 45), plain_tokens = 0;
    plain->AwaitTokens(1);
    const auto late = Add(0, 300, 10, nullptr, {}, "late");
    EXPECT_EQ(late->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(late->ids(), in_time->ids()) << recomputed;
    EXPECT_EQ(late->ids().size(), 9);
    EXPECT_EQ(plain->AwaitEnd(), absl::OkStatus());
    const auto alone = Add(700, 700, 45);
    EXPECT_EQ(alone->AwaitEnd(), absl::OkStatus());
    EXPECT_EQ(plain->ids(), alone->ids()) << recomputed;
    ExpectNothingHeld();
  }
}

// What ends leaves its KV in the store, the answer's as its steps wrote it.
TEST_F(KvprEngineTest, AChainsRestBehindWhatEndedGivesWhatPlainDecodeGives) {
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
TEST_F(KvprEngineTest, APromptWhoseKvNobodyHasMadeIsNotKept) {
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

TEST_F(KvprEngineTest, WhatASequenceTookIsReportedByItsRequest) {
  MakeEngine(64);
  const auto one = Add(1, 300, 4), two = Add(2, 900, 6);
  EXPECT_EQ(one->AwaitEnd(), absl::OkStatus());
  EXPECT_EQ(two->AwaitEnd(), absl::OkStatus());
  engine_ = nullptr;
  MutexLock lock(reported_mu_);
  ASSERT_EQ(reported_.size(), 2u);
  EXPECT_EQ(reported_[0].request_id, "request 1");
  EXPECT_EQ(reported_[0].steps, 3) << "the first token is the prefill's";
  EXPECT_EQ(reported_[1].request_id, "request 2");
  EXPECT_EQ(reported_[1].steps, 5);
  EXPECT_NE(reported_[0].lease, reported_[1].lease);
}

TEST_F(KvprEngineTest, TheLoopIsToldThatNothingIsToDo) {
  MakeEngine(0);
  EXPECT_EQ(Add(1, 20, 4)->AwaitEnd(), absl::OkStatus());
  engine_ = nullptr;
  EXPECT_GT(idles_, 0);
}

TEST_F(KvprEngineTest, AnEngineThatEndsInTheMiddleOfStepsGivesAllBack) {
  for (const int64_t recomputed : {0, 64, 1000}) {
    MakeEngine(recomputed);
    const auto one = Add(1, 900, kManyTokens), two = Add(2, 300, kManyTokens), three = Add(3, 600, kManyTokens);
    one->AwaitTokens(2);
    engine_ = nullptr;
    for (const auto& sink : {one, two, three}) EXPECT_EQ(sink->AwaitEnd().code(), absl::StatusCode::kUnavailable);
    ExpectNothingHeld();
  }
}

// One is cancelled in the middle of steps, one ends by itself, and the others end with the engine.
class KvprEngineFormsTest : public KvprEngineTest {
 protected:
  explicit KvprEngineFormsTest(unsigned more_uses = 0) : KvprEngineTest(more_uses) {}

  void CancelOneAndEndTheEngine(int64_t recomputed) {
    MakeEngine(recomputed);
    SequenceNumber cancelled = 0;
    const auto one = Add(1, 900, kManyTokens, &cancelled), two = Add(2, 300, 4), three = Add(3, 900, kManyTokens);
    three->AwaitTokens(3);
    engine_->Cancel(cancelled);
    EXPECT_EQ(one->AwaitEnd().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(two->AwaitEnd(), absl::OkStatus());
    const size_t so_far = three->ids().size();
    three->AwaitTokens(so_far + 2);
    engine_ = nullptr;
    EXPECT_EQ(three->AwaitEnd().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(resident_, 0);
    ExpectNothingHeld();
  }
};

TEST_F(KvprEngineFormsTest, QuantisedKvLeavesNothingBehind) {
  kv_bits_ = 8;
  CancelOneAndEndTheEngine(128);
}

TEST_F(KvprEngineFormsTest, XThatStaysOnTheDeviceLeavesNothingBehind) {
  x_may_stay_ = true;
  CancelOneAndEndTheEngine(0);
  EXPECT_GT(x_resident_, 0);
}

class KvprEngineWeightsTest : public KvprEngineFormsTest {
 protected:
  KvprEngineWeightsTest() : KvprEngineFormsTest(kUseStreamed) {}
};

TEST_F(KvprEngineWeightsTest, StreamedWeightsLeaveNothingBehind) {
  ASSERT_GT(WeightStream::DeviceBytes(*model_), 0);
  CancelOneAndEndTheEngine(64);
}

// More sequences than a step has room for, of all lengths, some of which are cancelled anywhere.
TEST_F(KvprEngineTest, ManyThatComeAndGoLeaveNothing) {
  MakeEngine(128);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::mt19937 random(3);
  for (int i = 0; i < 14; ++i) {
    SequenceNumber number = 0;
    sinks.push_back(Add(i, 1 + static_cast<int64_t>(random() % 900), kTokens, &number));
    if (i % 3 == 1) {
      sinks.back()->AwaitTokens(random() % 10);
      engine_->Cancel(number);
    }
    if (i % 3 == 2) {
      EXPECT_EQ(sinks[i - 2]->AwaitEnd(), absl::OkStatus());
    }
  }
  for (const auto& sink : sinks) {
    const absl::Status end = sink->AwaitEnd();
    EXPECT_TRUE(end.ok() || absl::IsCancelled(end)) << end;
  }
  ExpectNothingHeld();
}

}  // namespace
}  // namespace runahead
