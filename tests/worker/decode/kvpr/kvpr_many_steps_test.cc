// KVPR over many steps of many sequences whose lanes move in every step, against plain decode.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/exactness.h"
#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/counting_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/kvpr/weight_stream.h"
#include "worker/decode/step_memory.h"

namespace runahead {
namespace {

struct ManySteps {
  const char* name;
  Heads heads;
  DType dtype;
  int64_t sequences, steps;
  bool streamed;    // weights
  bool x_may_stay;  // on the device; else its budget is for windows, in front of which the host lane lies

  std::vector<int64_t> Prompts() const {
    if (sequences == 1) return {900};
    const int64_t shortest = x_may_stay ? 600 : 1, spread = x_may_stay ? 300 : 700;
    std::vector<int64_t> prompts;
    for (int64_t i = 0; i < sequences; ++i) prompts.push_back(shortest + 37 * i * i % spread);
    return prompts;
  }
  // Of KV that there is memory for. For X that stays and a window beside it takes more.
  int64_t Blocks() const { return x_may_stay ? 2 * sequences : sequences + sequences / 4 + 1; }
};

// Lanes at random, anew in each step.
std::unique_ptr<GivenSplit> RandomSplit(bool x_may_stay) {
  const auto random = std::make_shared<std::mt19937>(7);
  auto split = std::make_unique<GivenSplit>(
      [random](size_t, const LaneShape& shape) { return (*random)() % (shape.length + 1); },
      [random](size_t, const LaneShape&) { return (*random)() % 3; });
  if (!x_may_stay) split->recompute_s = 1;
  return split;
}

// Layers: so many that loads of the last one never run ahead of their step, for the ring has two slots.
constexpr int64_t kManyLayers = 3;

// What a GPU's stream keeps for products at these sizes, which is none of KVPR's memory.
size_t ProductBytes() {
  return FormOfTestDevice() == TestDeviceForm::kGpu ? size_t{64} << 10 : 0;
}

// Knows how much of its memory is left.
std::shared_ptr<Device> DeviceWithBudget(DType dtype) {
  if (FormOfTestDevice() != TestDeviceForm::kCpu) return *OpenTestDevice(dtype, 2);
  return *NewCpuDevice({.threads = 2, .compute_dtype = dtype, .memory_budget = size_t{1} << 30});
}

// What steps had, by the plans that the runtime reports.
struct Planned {
  LaneRows rows;         // added up
  int64_t kv_there = 0;  // rows of KV that cross the link: all that is streamed but the steps' own rows
  int64_t steps = 0;
  int64_t in_all_tiers = 0;  // steps with X that had stayed, a window and a host lane

  void Add(const LanePlan& plan, const std::vector<int64_t>& prompts) {
    rows.recomputed += plan.rows.recomputed;
    rows.x_streamed += plan.rows.x_streamed;
    rows.streamed += plan.rows.streamed;
    rows.host += plan.rows.host;
    rows.resident += plan.rows.resident;
    for (size_t i = 0; i < prompts.size(); ++i) {
      kv_there += std::min(plan.cuts[i].streamed_end, prompts[i] + steps) - plan.cuts[i].recomputed_end;
    }
    const bool x_stayed = plan.rows.x_streamed < plan.rows.recomputed;
    if (x_stayed && plan.rows.resident > 0 && plan.rows.host > 0) ++in_all_tiers;
    ++steps;
  }
};

class KvprManyStepsTest : public ::testing::TestWithParam<ManySteps> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(GetParam().dtype); }
};

TEST_P(KvprManyStepsTest, GivesWhatPlainDecodeGives) {
  const ManySteps& of = GetParam();
  const LoadedModel loaded = LoadHeads(of.heads, of.dtype, kManyLayers);
  const auto counting = std::make_shared<CountingDevice>(DeviceWithBudget(of.dtype));
  const unsigned uses = kUsePrefill | kUseDecode | (of.streamed ? unsigned{kUseStreamed} : 0);
  const LoadedModel over{loaded.file, counting, *LoadModel(loaded.file, counting, uses, [](int, int) {})};
  CountingHost host(*NewCpuDevice({.threads = 1}));
  const std::vector<int64_t> prompts = of.Prompts();
  KvprWorld plain(loaded, prompts, of.steps), kvpr(over, prompts, of.steps, true, {}, &loaded);
  plain.UseDecodeLoop();
  KvprOptions options = WindowsOf(loaded, of.sequences, of.Blocks());
  options.device_bytes += WeightStream::DeviceBytes(*over.model);
  options.host = &host;
  Planned planned;
  options.on_step = [&](const KvprStep& step) { planned.Add(step.plan, prompts); };
  const auto most =
      static_cast<size_t>(options.device_bytes +
                          KvprLoop::ScratchBytes(*loaded.model, *loaded.device, kvpr.store().options(), of.sequences) +
                          static_cast<int64_t>(DecodeStepBytes(loaded.model->config(), of.sequences, {},
                                                               kvpr.store().options().capacity_tokens))) +
      ProductBytes();
  const size_t level = counting->memory_left();
  kvpr.UseKvpr(RandomSplit(of.x_may_stay), options);
  EXPECT_LE(level - counting->memory_left(), static_cast<size_t>(options.device_bytes) + ProductBytes());
  counting->Watch(kvpr.store());
  TokenRule rule(of.dtype);
  for (int64_t step = 0; step < of.steps; ++step) {
    SCOPED_TRACE(step);
    const StepLogits actual = kvpr.Step(), expected = plain.Step();
    for (size_t i = 0; i < actual.size(); ++i) rule.Add(TopOf(actual[i]).id, TopOf(expected[i]));
    if (of.dtype == DType::kF32) ExpectClose(actual, expected);
    ASSERT_LE(level - counting->memory_left(), most);
  }
  rule.ExpectKept();
  kvpr.LeaveAll();
  EXPECT_EQ(planned.steps, of.steps);
  for (const int64_t lane :
       {planned.rows.recomputed, planned.rows.streamed, planned.rows.host, planned.rows.resident}) {
    EXPECT_GT(lane, 0);
  }
  if (of.x_may_stay) {
    EXPECT_GT(planned.in_all_tiers, 0);
  }
  const int64_t x_row_bytes = kvpr.store().options().x_row_bytes;
  EXPECT_EQ(counting->kv_bytes[kManyLayers - 1], static_cast<size_t>(planned.kv_there * loaded.model->kv_row_bytes()));
  EXPECT_EQ(counting->x_bytes[kManyLayers - 1], static_cast<size_t>(planned.rows.x_streamed * x_row_bytes));
  EXPECT_EQ(host.attended, planned.rows.host * kManyLayers);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, KvprManyStepsTest,
    ::testing::Values(ManySteps{"Mha", kMha, DType::kF32, 32, 128, false, false},
                      ManySteps{"GqaStreamedWeights", kGqa, DType::kF32, 32, 128, true, false},
                      ManySteps{"MqaAlone", kMqa, DType::kF32, 1, 128, false, false},
                      ManySteps{"MhaStreamedWeightsXMayStay", kMha, DType::kF32, 8, 128, true, true},
                      ManySteps{"MhaBf16", kMha, DType::kBF16, 32, 128, false, false},
                      ManySteps{"GqaBf16StreamedWeights", kGqa, DType::kBF16, 32, 128, true, false}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace runahead
