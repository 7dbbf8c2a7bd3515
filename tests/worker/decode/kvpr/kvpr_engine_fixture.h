// A decode engine whose steps are KVPR's, over made-up rows.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/worker/decode/collecting_sink.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/engine.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/decode/kvpr/weight_stream.h"
#include "worker/format/gguf.h"

namespace runahead {

// Of a sequence that is to end by itself; and of one that surely goes on while the test does something.
inline constexpr int64_t kTokens = 40, kManyTokens = 3000;

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
    if (kvpr && keeps_x_) options.x_row_bytes = 4 * config.hidden;
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
  std::shared_ptr<testing::CollectingSink> Add(int seed, int64_t prompt, int64_t tokens = kTokens,
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
    auto sink = std::make_shared<testing::CollectingSink>();
    const auto added = engine_->Add(std::move(sequence), sink);
    EXPECT_TRUE(added.ok()) << added.status();
    if (number != nullptr) *number = *added;
    return sink;
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

  void Fill(const LeaseId& lease, int64_t layer, int64_t prompt, SliceKind kind, int seed, int64_t from = 0) {
    auto write = store_->BeginWrite(lease, layer, from, prompt, kind);
    RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
    size_t bytes = 0, at = 0;
    for (const BufferRef& to : write->destination()) bytes += to.size;
    const std::vector<float> values = MadeUp(seed, layer, bytes / sizeof(float));
    for (const BufferRef& to : write->destination()) {
      std::memcpy(to.data(), values.data() + at / sizeof(float), to.size);
      at += to.size;
    }
    RUNAHEAD_CHECK(write->Commit().Wait().ok());
  }
  // What Fill writes, be it KV or X.
  static std::vector<float> MadeUp(int seed, int64_t layer, size_t count) {
    std::mt19937 random(static_cast<uint32_t>(100 * seed + layer));
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
  }

  std::shared_ptr<Device> device_;
  const std::shared_ptr<Device> host_ = *NewCpuDevice({.threads = 1});
  std::shared_ptr<const Model> model_;
  // Of the engines that are made next.
  int kv_bits_ = 16;
  bool keeps_x_ = true;
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
};

}  // namespace runahead
