// Graphs that KVPR's steps make of a GPU's runtime, as the engine runs them: counted on the emulation.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/cuda_emulation/control.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/worker/decode/collecting_sink.h"
#include "worker/decode/engine.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

constexpr int64_t kPrompt = 700, kWarmSteps = 5, kSteps = kWarmSteps + 20;

class KvprGraphsTest : public ::testing::Test {
 protected:
  KvprGraphsTest() {
    SyntheticModel model = SmallModel(2);
    model.kv_heads = model.heads;
    loaded_ = LoadForTest(WriteSynthetic(model, "kvpr_graphs"), DType::kF32, 1);
  }

  // How many had been made when each step of a sequence was done, the first token's not counted.
  std::vector<int64_t> GraphsBySteps(bool kvpr) {
    const ModelConfig& config = loaded_.model->config();
    const int64_t tokens = 1 + kSteps;
    store_ = *KvStore::Create({.layers = config.layers,
                               .row_bytes = loaded_.model->kv_row_bytes(),
                               .capacity_tokens = KvBlocksFor(kPrompt + tokens) * kKvBlockTokens,
                               .x_row_bytes = 4 * config.hidden},
                              *loaded_.device, RealClock());
    std::vector<int64_t> made;
    DecodeEngineOptions options{.max_batch = 1};
    options.on_step = [&made](const DecodeStep&) { made.push_back(cuda_emulation::GraphInstantiations()); };
    if (kvpr) options.make_loop = [this](Stream& stream) { return MakeLoop(stream); };
    auto engine = *DecodeEngine::Create(*loaded_.device, loaded_.model, *store_, std::move(options));
    DecodeSequence sequence;
    sequence.output_ids = {0};
    sequence.lease = *store_->Reserve({.prompt_tokens = kPrompt, .total_tokens = kPrompt + tokens, .with_x = true});
    sequence.prompt_ids.assign(kPrompt, 7);
    sequence.max_tokens = tokens;
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      for (const SliceKind kind : {SliceKind::kKv, SliceKind::kX}) Fill(sequence.lease, layer, kind);
    }
    const auto sink = std::make_shared<testing::CollectingSink>();
    EXPECT_TRUE(engine->Add(std::move(sequence), sink).ok());
    EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    return made;  // the engine ends first
  }

  LaneRows lanes_;  // of the last step of KVPR

 private:
  // A window, and pieces in every other lane.
  absl::StatusOr<std::unique_ptr<StepLoop>> MakeLoop(Stream& stream) {
    const ModelConfig& config = loaded_.model->config();
    const int64_t kv = loaded_.model->kv_row_bytes(), x = 4 * config.hidden;
    KvprOptions options{.max_rows = 1, .chunk_tokens = 256, .slots = 2, .host = host_.get()};
    options.device_bytes = (2 * 256 + 4) * (kv + x) + kKvBlockTokens * kv * config.layers;
    options.on_step = [this](const KvprStep& step) { lanes_ = step.plan.rows; };
    const LaneCosts costs{
        .link_bytes_per_s = 1e9, .kv_bytes = static_cast<double>(kv), .x_bytes = static_cast<double>(x)};
    return KvprLoop::Create(*loaded_.model, *loaded_.device, *store_, stream,
                            std::make_unique<FixedSplit>(64, costs, 256), options);
  }

  void Fill(const LeaseId& lease, int64_t layer, SliceKind kind) {
    auto write = *store_->BeginWrite(lease, layer, 0, kPrompt, kind);
    std::mt19937 random(static_cast<uint32_t>(layer));
    std::normal_distribution<float> normal;
    for (const BufferRef& to : write.destination()) {
      std::vector<float> values(to.size / sizeof(float));
      for (float& value : values) value = normal(random);
      std::memcpy(to.data(), values.data(), to.size);
    }
    ASSERT_EQ(write.Commit().Wait(), absl::OkStatus());
  }

  LoadedModel loaded_;
  const std::shared_ptr<Device> host_ = *NewCpuDevice({.threads = 1});
  std::unique_ptr<KvStore> store_;
};

// Neither while it warms up nor later: a step's pieces, and with them their graphs, change with the split.
TEST_F(KvprGraphsTest, NoneIsMade) {
  const int64_t before = cuda_emulation::GraphInstantiations();
  const std::vector<int64_t> made = GraphsBySteps(true);
  ASSERT_EQ(static_cast<int64_t>(made.size()), kSteps);
  EXPECT_EQ(made.back(), before);
  EXPECT_GT(lanes_.recomputed, 0);
  EXPECT_GT(lanes_.streamed, 0);
  EXPECT_GT(lanes_.host, 0);
  EXPECT_GT(lanes_.resident, 0);
}

TEST_F(KvprGraphsTest, PlainDecodeMakesOneAndKeepsIt) {
  const int64_t before = cuda_emulation::GraphInstantiations();
  const std::vector<int64_t> made = GraphsBySteps(false);
  ASSERT_EQ(static_cast<int64_t>(made.size()), kSteps);
  EXPECT_GT(made[kWarmSteps - 1], before);
  EXPECT_EQ(made.back(), made[kWarmSteps - 1]);
}

}  // namespace
}  // namespace runahead
