// Perplexity of a text over stores that keep KV, and X beside it, in fewer bits, against transformers
// (tests/golden/README.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/golden/golden_files.h"
#include "tests/testing/device_tensor.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/kv/store.h"
#include "worker/model/layer_pass.h"

namespace runahead {
namespace {

// The negative logarithm of what softmax gives `id`.
double Surprise(const std::vector<float>& logits, int32_t id) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum) - logits[id];
}

// The golden prompt, prefilled in f32 once, for decodes over stores of any bits.
class PrefilledText {
 public:
  PrefilledText(const LoadedModel& loaded, const GoldenPerplexity& golden)
      : loaded_(loaded), golden_(golden), quantiser_(*NewCpuDevice({.threads = 1})) {
    DeviceMemory memory(loaded.device);
    OwnedPassMemory pass_memory(*loaded.device);
    DenseKv kv(*loaded.device, *loaded.model, PromptTokens());
    kv.Next(PromptTokens());
    ForwardBatch batch;
    batch.ids = golden.prompt;
    batch.kv = kv.Layout();
    LayerPass pass(*loaded.model, *loaded.device, memory.stream(), pass_memory.memory(), std::move(batch));
    RUNAHEAD_CHECK(pass.Begin().ok());
    const Tensor x = memory.Empty(PromptTokens(), Hidden(), DType::kF32);
    for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
      RUNAHEAD_CHECK(pass.Project(layer, kv.layer(layer), {x.ref, RowForm::kF32, Hidden()}).ok());
      x_.push_back(memory.Read(x));
      kv_.push_back(memory.Read(
          MakeTensor(kv.layer(layer), loaded.model->kv_dtype(), PromptTokens(), 2 * loaded.model->config().kv_dim())));
      RUNAHEAD_CHECK(pass.Attend(layer, kv.layer(layer)).ok());
    }
  }

  // Of decode on the golden tokens, which copies all KV and recomputes nothing; or, with `x`, recomputes all but the
  // newest from X in that form.
  double Perplexity(int bits, std::optional<RowForm> x = {}) const {
    const std::unique_ptr<KvStore> store = NewStore(bits, x);
    const KvStore::Sequence sequence = Filled(*store);
    DeviceMemory memory(loaded_.device);
    auto loop =
        KvprLoop::Create(*loaded_.model, *loaded_.device, *store, memory.stream(),
                         std::make_unique<FixedSplit>(x.has_value() ? TotalTokens() : 0, LaneCosts{}), {.max_rows = 1});
    RUNAHEAD_CHECK(loop.ok());
    const size_t steps = golden_.forced.size() - 1;
    double sum = 0;
    for (size_t step = 0; step < steps; ++step) {
      const DecodeRow row{&sequence, golden_.forced[step], PromptTokens() + static_cast<int64_t>(step)};
      const auto logits = (*loop)->Step({&row, 1});
      RUNAHEAD_CHECK(logits.ok());
      sum += Surprise(memory.Read(*logits), golden_.forced[step + 1]);
    }
    (*loop)->Leave(sequence);
    return std::exp(sum / static_cast<double>(steps));
  }

 private:
  int64_t PromptTokens() const { return static_cast<int64_t>(golden_.prompt.size()); }
  int64_t Hidden() const { return loaded_.model->config().hidden; }
  int64_t TotalTokens() const { return PromptTokens() + static_cast<int64_t>(golden_.forced.size()); }

  std::unique_ptr<KvStore> NewStore(int bits, std::optional<RowForm> x) const {
    KvStoreOptions options{.layers = loaded_.model->config().layers,
                           .row_bytes = loaded_.model->kv_row_bytes(),
                           .capacity_tokens = KvBlocksFor(TotalTokens()) * kKvBlockTokens};
    if (bits < 16) {
      options.quantisation =
          KvQuantisation{{.bits = bits, .group = golden_.group}, loaded_.model->kv_dtype(), quantiser_.get()};
    }
    if (x.has_value()) {
      options.x_form = *x;
      options.x_row_bytes = RowFormBytes(*x, Hidden());
      if (IsQuantised(*x)) options.x_quantisation = XQuantisation{RowForm::kF32, Hidden(), quantiser_.get()};
    }
    return *KvStore::Create(options, *loaded_.device, RealClock());
  }

  // Through the store's own writes, as what prefill hands off.
  KvStore::Sequence Filled(KvStore& store) const {
    const bool with_x = store.x_arena() != nullptr;
    const LeaseId lease =
        *store.Reserve({.prompt_tokens = PromptTokens(), .total_tokens = TotalTokens(), .with_x = with_x});
    for (int64_t layer = 0; layer < loaded_.model->config().layers; ++layer) {
      Write(store, lease, layer, SliceKind::kKv, kv_[static_cast<size_t>(layer)]);
      if (with_x) Write(store, lease, layer, SliceKind::kX, x_[static_cast<size_t>(layer)]);
    }
    return *store.Open(lease);
  }
  void Write(KvStore& store, const LeaseId& lease, int64_t layer, SliceKind kind,
             const std::vector<float>& values) const {
    auto write = store.BeginWrite(lease, layer, 0, PromptTokens(), kind);
    RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
    const auto* from = reinterpret_cast<const std::byte*>(values.data());
    for (const BufferRef& to : write->destination()) {
      std::memcpy(to.data(), from, to.size);
      from += to.size;
    }
    RUNAHEAD_CHECK(write->Commit().Wait().ok());
  }

  const LoadedModel& loaded_;
  const GoldenPerplexity& golden_;
  const std::shared_ptr<Device> quantiser_;
  std::vector<std::vector<float>> kv_, x_;  // of each layer
};

TEST(QuantisedPerplexityGolden, IsThatOfTransformersWithTheSameGroups) {
  if (QuickStartModelPath().empty()) GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model; tests/run sets it";
  const LoadedModel loaded = LoadForTest(QuickStartModelPath(), DType::kF32, 2);
  const GoldenPerplexity golden = ReadGoldenPerplexity();
  const PrefilledText text(loaded, golden);
  const double of_16 = golden.perplexity.at(16), of_8 = golden.perplexity.at(8), of_4 = golden.perplexity.at(4);

  EXPECT_NEAR(text.Perplexity(16), of_16, 0.01 * of_16);
  EXPECT_NEAR(text.Perplexity(8), of_8, 0.05 * of_8);
  const double in_4 = text.Perplexity(4);
  EXPECT_NEAR(in_4, of_4, 0.05 * of_4);
  // With X in as many bits, from which all but the newest token's KV is made.
  EXPECT_NEAR(text.Perplexity(8, RowForm::kQ8), of_8, 0.01 * of_8);
  // In 4 bits what a layer rounds decides what the next ones round, so the last bits of f32, which instruction sets sum
  // otherwise, move the perplexity of 200 tokens: 26.6 was seen, and 28.0.
  EXPECT_NEAR(text.Perplexity(4, RowForm::kQ4), of_4, 0.1 * of_4);
  // It could not be so without quantisation.
  EXPECT_LT(std::abs(in_4 - of_4), std::abs(in_4 - of_16));
}

}  // namespace
}  // namespace runahead
