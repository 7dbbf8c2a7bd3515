// KVPR over many steps of many sequences whose lanes move in every step, against plain decode.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "tests/testing/exactness.h"
#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"

namespace runahead {
namespace {

constexpr int64_t kManySteps = 128, kSequences = 32;

std::vector<int64_t> RaggedPrompts() {
  std::vector<int64_t> prompts;
  for (int64_t i = 0; i < kSequences; ++i) prompts.push_back(1 + i * i % 700);
  return prompts;
}

// Lanes at random, anew in each step.
std::unique_ptr<GivenSplit> RandomSplit() {
  const auto random = std::make_shared<std::mt19937>(7);
  auto split = std::make_unique<GivenSplit>(
      [random](size_t, const LaneShape& shape) { return (*random)() % (shape.length + 1); },
      [random](size_t, const LaneShape&) { return (*random)() % 3; });
  split->recompute_s = 1;  // so the budget is for windows, in front of which the host lane lies
  return split;
}

class KvprManyStepsTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(GetParam()); }
};

TEST_P(KvprManyStepsTest, GivesWhatPlainDecodeGives) {
  const LoadedModel loaded = LoadHeads(kMha, GetParam());
  KvprWorld plain(loaded, RaggedPrompts(), kManySteps), kvpr(loaded, RaggedPrompts(), kManySteps);
  plain.UseDecodeLoop();
  KvprOptions options = WindowsOf(loaded, kSequences, 40);
  options.host = &kvpr.host();
  LaneRows seen;
  options.on_step = [&seen](const KvprStep& step) {
    seen.recomputed += step.plan.rows.recomputed;
    seen.streamed += step.plan.rows.streamed;
    seen.host += step.plan.rows.host;
    seen.resident += step.plan.rows.resident;
  };
  const KvprLoop& loop = kvpr.UseKvpr(RandomSplit(), options);
  TokenRule rule(GetParam());
  for (int64_t step = 0; step < kManySteps; ++step) {
    SCOPED_TRACE(step);
    const StepLogits actual = kvpr.Step(), expected = plain.Step();
    for (size_t i = 0; i < actual.size(); ++i) rule.Add(TopOf(actual[i]).id, TopOf(expected[i]));
    if (GetParam() == DType::kF32) ExpectClose(actual, expected);
    ASSERT_LE(loop.device_bytes(), options.device_bytes);
  }
  rule.ExpectKept();
  kvpr.LeaveAll();
  EXPECT_GT(seen.recomputed, 0);
  EXPECT_GT(seen.streamed, 0);
  EXPECT_GT(seen.host, 0);
  EXPECT_GT(seen.resident, 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, KvprManyStepsTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace runahead
