// What is recomputed, and the memory that this takes.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/step_memory.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

class KvprRecomputeTest : public ::testing::Test {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }

  // The same for a sequence wherever it stands in a step, and no multiple of a tile.
  static std::unique_ptr<GivenSplit> HalfOfEach() {
    return std::make_unique<GivenSplit>([](size_t, const LaneShape& shape) { return shape.length / 2; });
  }
};

TEST_F(KvprRecomputeTest, IsBitwiseTheSameForTheSameSplitInAnyCompanyAndAnyChunks) {
  const LoadedModel loaded = LoadHeads(kMha);
  const std::vector<int64_t> prompts =
      TestDeviceIsSlow() ? std::vector<int64_t>{300, 90, 500} : std::vector<int64_t>{1200, 90, 300, 700};
  KvprWorld together(loaded, prompts, Steps()), alone(loaded, prompts, Steps());
  KvprOptions large, small;
  large.chunk_tokens = 2048;
  small.chunk_tokens = 256;
  small.max_rows = static_cast<int64_t>(prompts.size());
  together.UseKvpr(HalfOfEach(), large);
  alone.UseKvpr(HalfOfEach(), small);
  for (int64_t step = 0; step < Steps(); ++step) {
    SCOPED_TRACE(step);
    const StepLogits all = together.Step();
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(alone.Step({i}).front(), all[i]) << i;
  }
}

// The paper's bound, l <= s; ours is l <= s'.
TEST_F(KvprRecomputeTest, StaysWithinThePromptWhereThatIsTheBound) {
  const LoadedModel loaded = LoadHeads(kMha);
  for (const bool of_prompt_only : {false, true}) {
    KvprWorld world(loaded, {300}, 4);
    std::vector<int64_t> l;
    KvprOptions options{.of_prompt_only = of_prompt_only};
    options.on_step = [&l](const KvprStep& step) { l.push_back(step.plan.rows.recomputed); };
    world.UseKvpr(SplitAt(1000), options);
    for (int step = 0; step < 4; ++step) world.Step();
    world.LeaveAll();
    EXPECT_EQ(l,
              of_prompt_only ? (std::vector<int64_t>{300, 300, 300, 300}) : (std::vector<int64_t>{300, 301, 302, 303}));
  }
}

// A worker gives KVPR what its device has left but for what steps take: that must be enough in the longest step, too.
TEST(KvprLoopMemory, StepsFindRoomInWhatIsSpared) {
  constexpr int64_t kBatch = 4, kPrompt = 1000;
  SyntheticModel model = SmallModel(1);
  model.hidden = 512;
  model.heads = model.kv_heads = 8;
  model.head_dim = 64;  // rows of KV are large beside what is rounded up
  const std::string path = WriteSynthetic(model, "kvpr_memory");
  const auto load = [&](size_t budget) {
    const std::shared_ptr<Device> device = *NewCpuDevice({.memory_budget = budget});
    const auto file = *OpenGguf(path);
    return LoadedModel{file, device, *LoadModel(file, device, kUseDecode | kUseRecompute, [](int, int) {})};
  };
  const LoadedModel unbounded = load(size_t{1} << 30);
  const size_t weights = (size_t{1} << 30) - unbounded.device->memory_left();
  const ModelConfig& config = unbounded.model->config();
  const auto scratch = static_cast<size_t>(KvprLoop::ScratchBytes(*unbounded.model, *unbounded.device, {}, kBatch));
  const size_t steps = DecodeStepBytes(config, kBatch, {}, kBatch * KvBlocksFor(kPrompt + 4) * kKvBlockTokens);
  const size_t spared = steps + scratch, staging = size_t{24} << 20;
  const LoadedModel bounded = load(weights + spared + staging);
  KvprWorld world(bounded, std::vector<int64_t>(kBatch, kPrompt), 4, true, {}, &unbounded);
  KvprOptions options{.max_rows = kBatch, .device_bytes = static_cast<int64_t>(bounded.device->memory_left() - spared)};
  const KvprLoop& loop = world.UseKvpr(SplitAt(1000), options);
  for (int step = 0; step < 3; ++step) world.Step();
  EXPECT_LE(loop.device_bytes(), options.device_bytes);
  const int64_t context = kBatch * kPrompt * bounded.model->kv_row_bytes() * config.layers;
  EXPECT_GT(scratch, size_t{1} << 20) << "else nothing is said";
  EXPECT_GT(context, static_cast<int64_t>(staging) / 2);
}

}  // namespace
}  // namespace runahead
