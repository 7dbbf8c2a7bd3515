// KVPR over many steps of many sequences whose lanes move in every step, against plain decode.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/exactness.h"
#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/kvpr/weight_stream.h"

namespace runahead {
namespace {

struct ManySteps {
  const char* name;
  Heads heads;
  DType dtype;
  int64_t sequences, steps;
  bool streamed;    // weights
  bool x_may_stay;  // on the device; else its budget is for windows, in front of which the host lane lies
};

std::vector<int64_t> RaggedPrompts(int64_t sequences) {
  if (sequences == 1) return {900};
  std::vector<int64_t> prompts;
  for (int64_t i = 0; i < sequences; ++i) prompts.push_back(1 + 37 * i * i % 700);
  return prompts;
}

// Lanes at random, anew in each step.
std::unique_ptr<GivenSplit> RandomSplit(bool x_may_stay) {
  const auto random = std::make_shared<std::mt19937>(7);
  auto split = std::make_unique<GivenSplit>(
      [random](size_t, const LaneShape& shape) { return (*random)() % (shape.length + 1); },
      [random](size_t, const LaneShape&) { return (*random)() % 3; });
  if (!x_may_stay) split->recompute_s = 1;
  return split;
}

// Whose weights stay in host memory.
LoadedModel WithStreamedWeights(const LoadedModel& loaded) {
  constexpr unsigned kUses = kUsePrefill | kUseDecode | kUseStreamed;
  return {loaded.file, loaded.device, *LoadModel(loaded.file, loaded.device, kUses, [](int, int) {})};
}

class KvprManyStepsTest : public ::testing::TestWithParam<ManySteps> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(GetParam().dtype); }
};

TEST_P(KvprManyStepsTest, GivesWhatPlainDecodeGives) {
  const ManySteps& of = GetParam();
  const LoadedModel loaded = LoadHeads(of.heads, of.dtype, 2);
  const LoadedModel over = of.streamed ? WithStreamedWeights(loaded) : loaded;
  const std::vector<int64_t> prompts = RaggedPrompts(of.sequences);
  KvprWorld plain(loaded, prompts, of.steps), kvpr(over, prompts, of.steps, true, {}, &loaded);
  plain.UseDecodeLoop();
  KvprOptions options = WindowsOf(loaded, of.sequences, of.sequences + of.sequences / 4 + 1);
  options.device_bytes += WeightStream::DeviceBytes(*over.model);
  options.host = &kvpr.host();
  LaneRows seen;
  options.on_step = [&seen](const KvprStep& step) {
    const LaneRows& rows = step.plan.rows;
    seen.recomputed += rows.recomputed;
    seen.x_streamed += rows.x_streamed;
    seen.streamed += rows.streamed;
    seen.host += rows.host;
    seen.resident += rows.resident;
  };
  const KvprLoop& loop = kvpr.UseKvpr(RandomSplit(of.x_may_stay), options);
  TokenRule rule(of.dtype);
  for (int64_t step = 0; step < of.steps; ++step) {
    SCOPED_TRACE(step);
    const StepLogits actual = kvpr.Step(), expected = plain.Step();
    for (size_t i = 0; i < actual.size(); ++i) rule.Add(TopOf(actual[i]).id, TopOf(expected[i]));
    if (of.dtype == DType::kF32) ExpectClose(actual, expected);
    ASSERT_LE(loop.device_bytes(), options.device_bytes);
  }
  rule.ExpectKept();
  kvpr.LeaveAll();
  EXPECT_GT(seen.recomputed, 0);
  EXPECT_GT(seen.streamed, 0);
  if (of.x_may_stay) {
    EXPECT_LT(seen.x_streamed, seen.recomputed);
  } else {
    EXPECT_GT(seen.host, 0);
    EXPECT_GT(seen.resident, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, KvprManyStepsTest,
    ::testing::Values(ManySteps{"Mha", kMha, DType::kF32, 32, 128, false, false},
                      ManySteps{"GqaStreamedWeights", kGqa, DType::kF32, 32, 32, true, false},
                      ManySteps{"MqaAlone", kMqa, DType::kF32, 1, 128, false, false},
                      ManySteps{"MhaStreamedWeightsXMayStay", kMha, DType::kF32, 8, 32, true, true},
                      ManySteps{"MhaBf16", kMha, DType::kBF16, 32, 32, false, false},
                      ManySteps{"GqaBf16StreamedWeights", kGqa, DType::kBF16, 32, 32, true, false}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace runahead
