#include "worker/decode/decode_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/device_tensor.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"
#include "tests/testing/windowed_model.h"

namespace runahead {
namespace {

constexpr int64_t kPrompts[] = {1, 5, 255, 256, 300, 700};
constexpr int64_t kSteps = 3;

// A store in one tier with made-up KV of all prompts, the same whatever the tier, and a loop over it. With `windows` of
// the store only what they leave to decode is there, the other rows are NaN (in host memory).
class TierLoop {
 public:
  TierLoop(const LoadedModel& loaded, MemoryKind tier, std::vector<int64_t> windows = {})
      : memory_(loaded.device),
        store_(*KvStore::Create({.layers = loaded.model->config().layers,
                                 .row_bytes = loaded.model->kv_row_bytes(),
                                 .capacity_tokens = 16 * kKvBlockTokens,
                                 .tier = tier,
                                 .windows = std::move(windows)},
                                *loaded.device, RealClock())),
        loop_(*loaded.model, *loaded.device, *store_, memory_.stream()) {
    if (!store_->options().windows.empty()) {
      for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
        std::memset(store_->arena().Layer(layer).data(), 0xff, store_->arena().Layer(layer).size);
      }
    }
    for (const int64_t prompt : kPrompts) sequences_.push_back(Fill(prompt));
  }

  // The logits of the rows that `picked` names, after a step in which they are together.
  std::vector<std::vector<float>> Step(const std::vector<size_t>& picked, int64_t step) {
    std::vector<DecodeRow> rows;
    for (const size_t i : picked) {
      rows.push_back({&sequences_[i], static_cast<int32_t>((7 * i + 31 * step) % 320), kPrompts[i] + step});
    }
    const auto logits = loop_.Step(rows);
    RUNAHEAD_CHECK(logits.ok());
    std::vector<std::vector<float>> values;
    memory_.Finish();
    for (int64_t row = 0; row < logits->rows; ++row) values.push_back(memory_.Read(logits->Rows(row, 1)));
    return values;
  }

 private:
  KvStore::Sequence Fill(int64_t prompt) {
    const LeaseId lease = *store_->Reserve({.prompt_tokens = prompt, .total_tokens = prompt + kSteps});
    std::mt19937 random(static_cast<uint32_t>(prompt));
    std::normal_distribution<float> normal;
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      std::vector<float> values(static_cast<size_t>(prompt * store_->options().row_bytes) / sizeof(float));
      for (float& value : values) value = normal(random);
      Write(lease, layer, prompt, reinterpret_cast<const std::byte*>(values.data()));
    }
    return *store_->Open(lease);
  }

  void Write(const LeaseId& lease, int64_t layer, int64_t prompt, const std::byte* rows) {
    const std::vector<int64_t>& windows = store_->options().windows;
    const int64_t window = windows.empty() ? 0 : windows[layer];
    const int64_t seen = window == 0 ? 0 : std::max<int64_t>(0, prompt + 1 - window);
    if (seen == prompt) return;
    auto write = store_->BeginWrite(lease, layer, seen, prompt);
    RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
    rows += seen * store_->options().row_bytes;
    for (const BufferRef& to : write->destination()) {
      std::memcpy(to.data(), rows, to.size);
      rows += to.size;
    }
    RUNAHEAD_CHECK(write->Commit().Wait().ok());
  }

  DeviceMemory memory_;
  const std::unique_ptr<KvStore> store_;
  DecodeLoop loop_;
  std::vector<KvStore::Sequence> sequences_;  // end before the store does
};

class DecodeLoopTest : public ::testing::Test {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }
};

TEST_F(DecodeLoopTest, GivesBitwiseTheSameInBothTiersAndInAnyCompany) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(), "decode_loop"), DType::kF32, 2);
  TierLoop host(loaded, MemoryKind::kHost), device(loaded, MemoryKind::kDevice), alone(loaded, MemoryKind::kDevice);
  const std::vector<size_t> all = {0, 1, 2, 3, 4, 5};
  for (int64_t step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(step);
    const auto together = host.Step(all, step);
    EXPECT_EQ(device.Step(all, step), together);
    for (const size_t i : all) EXPECT_EQ(alone.Step({i}, step).front(), together[i]) << kPrompts[i];
  }
}

TEST_F(DecodeLoopTest, RowsThatWindowsHideMayNeverHaveCome) {
  const LoadedModel plain = LoadForTest(WriteSynthetic(SmallModel(), "decode_loop"), DType::kF32, 2);
  for (const std::vector<int64_t>& windows :
       std::vector<std::vector<int64_t>>{{1, 1, 1, 1}, {2, 0, 256, 257}, {300, 299, 40, 0}, {600, 5000, 701, 702}}) {
    SCOPED_TRACE(testing::PrintToString(windows));
    const LoadedModel loaded{plain.file, plain.device, std::make_shared<WindowedModel>(plain.model, windows)};
    TierLoop all(loaded, MemoryKind::kHost), seen(loaded, MemoryKind::kHost, windows);
    for (int64_t step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(step);
      EXPECT_EQ(seen.Step({0, 1, 2, 3, 4, 5}, step), all.Step({0, 1, 2, 3, 4, 5}, step));
    }
  }
}

}  // namespace
}  // namespace runahead
