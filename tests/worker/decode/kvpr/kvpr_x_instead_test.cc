// KVPR over sequences of whose beginning X came instead of KV: the store's rows there are NaN, until the first step has
// made them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/recompute/split_solver.h"
#include "tests/testing/solved_split.h"
#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

constexpr int64_t kSteps = 4;

GivenSplit::Cut Always(int64_t value) {
  return [value](size_t, const LaneShape&) { return value; };
}

GivenSplit::Cut Random(int seed) {
  return [random = std::make_shared<std::mt19937>(seed)](size_t, const LaneShape& shape) {
    return static_cast<int64_t>((*random)() % (shape.length + 1));
  };
}

class KvprXInsteadTest : public ::testing::TestWithParam<Heads> {
 protected:
  void SetUp() override {
    RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
    loaded_ = LoadHeads(GetParam());
  }
  KvprWorld World(std::vector<int64_t> prompts, int64_t steps, int64_t kv_from, std::optional<KvQuant> quant = {}) {
    return KvprWorld(loaded_, std::move(prompts), steps, /*with_x=*/true, quant, nullptr, kv_from);
  }
  std::vector<StepLogits> Plain(const std::vector<int64_t>& prompts) { return PlainSteps(loaded_, prompts, kSteps); }

  LoadedModel loaded_;
};

TEST_P(KvprXInsteadTest, IsRecomputedWhateverTheSplitWantsAndWhateverStays) {
  const std::vector<StepLogits> expected = Plain(Prompts());
  for (const int64_t kv_from : {64, 100, 100'000}) {
    for (const int64_t resident_blocks : {0, 7, 64}) {
      for (const bool random : {false, true}) {
        SCOPED_TRACE(absl::StrCat(kv_from, ", ", resident_blocks, random ? ", random" : ""));
        KvprWorld kvpr = World(Prompts(), kSteps, kv_from);
        KvprOptions options;
        if (resident_blocks > 0) options.device_bytes = BytesWithResident(loaded_, resident_blocks);
        kvpr.UseKvpr(std::make_unique<GivenSplit>(random ? Random(5) : Always(0)), options);
        for (int64_t step = 0; step < kSteps; ++step) {
          SCOPED_TRACE(step);
          ExpectClose(kvpr.Step(), expected[step]);
        }
      }
    }
  }
}

TEST_P(KvprXInsteadTest, IsBitwiseWhatTheSameSplitGivesWhereKvCameToo) {
  for (const std::optional<KvQuant> quant :
       {std::optional<KvQuant>(), std::optional(KvQuant{.bits = 8, .group = 32})}) {
    KvprWorld with = World(Prompts(), kSteps, 0, quant), instead = World(Prompts(), kSteps, 128, quant);
    with.UseKvpr(SplitAt(128));
    instead.UseKvpr(SplitAt(128));
    for (int64_t step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(step);
      ExpectSame(instead.Step(), with.Step());
    }
  }
}

// A window over tokens that have no KV in the store is made of rows that were recomputed, once.
TEST_P(KvprXInsteadTest, BecomesResidentAndIsThenNotMadeAgain) {
  const std::vector<int64_t> prompts = {700, 300};
  const std::vector<StepLogits> expected = Plain(prompts);
  KvprWorld kvpr = World(prompts, kSteps, 640);
  std::vector<int64_t> recomputed;
  KvprOptions options;
  options.device_bytes = BytesWithResident(loaded_, 40);
  options.on_step = [&](const KvprStep& step) { recomputed.push_back(step.plan.rows.recomputed); };
  auto split = SplitAt(0);
  split->recompute_s = 1;  // so no X stays on the device
  kvpr.UseKvpr(std::move(split), options);
  ExpectClose(kvpr.Step(), expected[0]);
  for (size_t i = 0; i < prompts.size(); ++i) kvpr.PoisonX(i, 0, prompts[i]);
  for (int64_t step = 1; step < kSteps; ++step) ExpectClose(kvpr.Step(), expected[step]);
  kvpr.LeaveAll();
  EXPECT_EQ(recomputed, (std::vector<int64_t>{640 + 300, 0, 0, 0}));
}

// Whoever begins with the sequence's KV reads it from the store.
TEST_P(KvprXInsteadTest, IsSettledOnceAStepHasHadTheSequence) {
  KvprWorld kvpr = World({700, 300}, kSteps, 128), whole = World({700, 300}, kSteps, 0);
  kvpr.UseKvpr(SplitAt(0));
  whole.UseKvpr(SplitAt(0));
  EXPECT_FALSE(kvpr.Settle(0));
  EXPECT_TRUE(whole.Settle(0)) << "its KV came";
  kvpr.Step({1});
  EXPECT_FALSE(kvpr.Settle(0));
  for (int step = 0; step < 2; ++step) {
    kvpr.Step({0});
    EXPECT_TRUE(kvpr.Settle(0));
    for (int64_t layer = 0; layer < kvpr.store().options().layers; ++layer) {
      const std::vector<std::byte> stored = kvpr.Stored(0, layer);
      std::vector<float> values(stored.size() / sizeof(float));
      std::memcpy(values.data(), stored.data(), stored.size());
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) << layer;
    }
  }
}

TEST_P(KvprXInsteadTest, TheHostHasItOnceItIsInTheStore) {
  const std::vector<int64_t> prompts = {1024, 700, 5, 300};
  const std::vector<StepLogits> expected = Plain(prompts);
  for (const int64_t kv_from : {64, 300, 600}) {
    SCOPED_TRACE(kv_from);
    KvprWorld kvpr = World(prompts, kSteps, kv_from);
    int64_t on_host = 0;
    KvprOptions options = WindowsOf(loaded_, 4, 8);
    options.host = &kvpr.host();
    int64_t steps = 0;
    options.on_step = [&](const KvprStep& step) {
      ++steps;
      for (const LaneCuts& cut : step.plan.cuts) {
        if (cut.streamed_end == cut.host_end) continue;
        EXPECT_GT(steps, 1);
        EXPECT_GE(cut.streamed_end, cut.recomputed_end);
        on_host += cut.host_end - cut.streamed_end;
      }
    };
    auto split = std::make_unique<GivenSplit>(Always(0), Always(100));
    split->recompute_s = 1;
    kvpr.UseKvpr(std::move(split), options);
    for (int64_t step = 0; step < kSteps; ++step) ExpectClose(kvpr.Step(), expected[step]);
    kvpr.LeaveAll();
    EXPECT_GT(on_host, 0);
  }
}

// Windows shrink and grow over it.
TEST_P(KvprXInsteadTest, SequencesComeAndGo) {
  const std::vector<int64_t> prompts = {255, 900, 300, 20};
  KvprWorld plain(loaded_, prompts, 20), kvpr = World(prompts, 20, 512);
  plain.UseDecodeLoop();
  KvprOptions options = WindowsOf(loaded_, 4, 4);
  options.host = &kvpr.host();
  kvpr.UseKvpr(std::make_unique<GivenSplit>(Random(6), Always(1)), options);
  const std::vector<std::vector<size_t>> steps = {{1}, {1}, {0, 1}, {0, 1, 2}, {2, 1}, {2, 1, 3}, {1, 3}, {1}, {3, 1}};
  for (const std::vector<size_t>& picked : steps) ExpectClose(kvpr.Step(picked), plain.Step(picked));
  kvpr.End(2);
  for (int step = 0; step < 3; ++step) ExpectClose(kvpr.Step({1, 0}), plain.Step({1, 0}));
  kvpr.End(0);
  for (int step = 0; step < 3; ++step) ExpectClose(kvpr.Step({1}), plain.Step({1}));
}

// The solver would recompute nothing.
TEST_P(KvprXInsteadTest, TheSolverKeepsToItInTheFirstStep) {
  const std::vector<int64_t> prompts = {700, 300};
  const std::vector<StepLogits> expected = Plain(prompts);
  KvprWorld kvpr = World(prompts, kSteps, 256);
  LaneCosts costs = GivenSplit(Always(0)).costs();
  costs.recompute_s = 1;
  std::vector<int64_t> l;
  KvprOptions options;
  options.on_step = [&](const KvprStep& step) {
    for (const LaneCuts& cut : step.plan.cuts) l.push_back(cut.recomputed_end);
  };
  kvpr.UseKvpr(std::make_unique<testing::SolvedSplit>(costs), options);
  for (int64_t step = 0; step < kSteps; ++step) ExpectClose(kvpr.Step(), expected[step]);
  kvpr.LeaveAll();
  std::vector<int64_t> expected_l(2 * kSteps, 0);
  expected_l[0] = expected_l[1] = 256;
  EXPECT_EQ(l, expected_l);
}

INSTANTIATE_TEST_SUITE_P(Heads, KvprXInsteadTest, ::testing::Values(kMha, kGqa, kOpt),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace runahead
