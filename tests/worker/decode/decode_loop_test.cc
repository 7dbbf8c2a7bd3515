#include "worker/decode/decode_loop.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/device_tensor.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

constexpr int64_t kPrompts[] = {1, 5, 255, 256, 300, 700};
constexpr int64_t kSteps = 3;

// A store in one tier with made-up KV of all prompts, the same whatever the tier, and a loop over it.
class TierLoop {
 public:
  TierLoop(const LoadedModel& loaded, MemoryKind tier)
      : memory_(loaded.device),
        store_(*KvStore::Create({.layers = loaded.model->config().layers,
                                 .row_bytes = loaded.model->kv_row_bytes(),
                                 .capacity_tokens = 16 * kKvBlockTokens,
                                 .tier = tier},
                                *loaded.device, RealClock())),
        loop_(*loaded.model, *loaded.device, *store_, memory_.stream()) {
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
    const LeaseId lease = *store_->Reserve(prompt, prompt + kSteps);
    std::mt19937 random(static_cast<uint32_t>(prompt));
    std::normal_distribution<float> normal;
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      auto write = store_->BeginWrite(lease, layer, 0, prompt);
      RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
      for (const BufferRef& to : write->destination()) {
        for (size_t at = 0; at < to.size; at += sizeof(float)) {
          const float value = normal(random);
          std::memcpy(to.data() + at, &value, sizeof(value));
        }
      }
      RUNAHEAD_CHECK(write->Commit().Wait().ok());
    }
    return *store_->Open(lease);
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

}  // namespace
}  // namespace runahead
