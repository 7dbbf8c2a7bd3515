// Perplexity of a text over stores that keep KV in fewer bits, against transformers (tests/golden/README.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/golden/golden_files.h"
#include "tests/testing/device_tensor.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/kv/store.h"

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
    SequenceRunner runner(loaded, PromptTokens());
    runner.Append(golden.prompt, /*batch_invariant=*/false, /*all_logits=*/false);
    for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) kv_.push_back(runner.Kv(layer));
  }

  // Of decode on the golden tokens, which copies all KV and recomputes nothing.
  double Perplexity(int bits) const {
    const std::unique_ptr<KvStore> store = NewStore(bits);
    const KvStore::Sequence sequence = Filled(*store);
    DeviceMemory memory(loaded_.device);
    auto loop = KvprLoop::Create(*loaded_.model, *loaded_.device, *store, memory.stream(),
                                 std::make_unique<FixedSplit>(0, LaneCosts{}), {.max_rows = 1});
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
  int64_t TotalTokens() const { return PromptTokens() + static_cast<int64_t>(golden_.forced.size()); }

  std::unique_ptr<KvStore> NewStore(int bits) const {
    KvStoreOptions options{.layers = loaded_.model->config().layers,
                           .row_bytes = loaded_.model->kv_row_bytes(),
                           .capacity_tokens = KvBlocksFor(TotalTokens()) * kKvBlockTokens};
    if (bits < 16) {
      options.quantisation =
          KvQuantisation{{.bits = bits, .group = golden_.group}, loaded_.model->kv_dtype(), quantiser_.get()};
    }
    return *KvStore::Create(options, *loaded_.device, RealClock());
  }

  // Through the store's own writes, as KV that prefill hands off.
  KvStore::Sequence Filled(KvStore& store) const {
    const LeaseId lease = *store.Reserve(PromptTokens(), TotalTokens());
    for (size_t layer = 0; layer < kv_.size(); ++layer) {
      auto write = store.BeginWrite(lease, static_cast<int64_t>(layer), 0, PromptTokens());
      RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
      const auto* from = reinterpret_cast<const std::byte*>(kv_[layer].data());
      for (const BufferRef& to : write->destination()) {
        std::memcpy(to.data(), from, to.size);
        from += to.size;
      }
      RUNAHEAD_CHECK(write->Commit().Wait().ok());
    }
    return *store.Open(lease);
  }

  const LoadedModel& loaded_;
  const GoldenPerplexity& golden_;
  const std::shared_ptr<Device> quantiser_;
  std::vector<std::vector<float>> kv_;  // of each layer
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
  // It could not be so without quantisation.
  EXPECT_LT(std::abs(in_4 - of_4), std::abs(in_4 - of_16));
}

}  // namespace
}  // namespace runahead
