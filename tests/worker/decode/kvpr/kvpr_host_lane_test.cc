// KVPR with a host lane, against plain decode over the same stores.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/counting_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

class KvprHostLaneTest : public ::testing::TestWithParam<Heads> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }

  static KvprOptions Options(const LoadedModel& loaded, Device& host, int64_t blocks) {
    KvprOptions options = WindowsOf(loaded, 4, blocks);
    options.host = &host;
    return options;
  }
  static std::unique_ptr<GivenSplit> Split(GivenSplit::Cut l, GivenSplit::Cut host_pieces) {
    auto split = std::make_unique<GivenSplit>(std::move(l), std::move(host_pieces));
    split->recompute_s = 1;  // so no X stays on the device
    return split;
  }
};

GivenSplit::Cut Always(int64_t value) {
  return [value](size_t, const LaneShape&) { return value; };
}

TEST_P(KvprHostLaneTest, GivesTheSameUpToRounding) {
  const LoadedModel loaded = LoadHeads(GetParam());
  const std::vector<int64_t> prompts = {1024, 700, 5, 300};
  const std::vector<StepLogits> expected = PlainSteps(loaded, prompts, Steps());
  auto random = std::make_shared<std::mt19937>(5);
  const std::pair<GivenSplit::Cut, GivenSplit::Cut> cuts[] = {
      {Always(0), Always(100)},
      {Always(64), Always(1)},
      {Always(100'000), Always(2)},
      {[random](size_t, const LaneShape& shape) { return (*random)() % (shape.length + 1); },
       [random](size_t, const LaneShape&) { return (*random)() % 4; }}};
  for (const auto& [l, host_pieces] : cuts) {
    const auto host = std::make_shared<CountingHost>(*NewCpuDevice({.threads = 1}));
    KvprWorld kvpr(loaded, prompts, Steps());
    int64_t planned = 0;
    KvprOptions options = Options(loaded, *host, 8);
    options.on_step = [&planned](const KvprStep& step) { planned += step.plan.rows.host; };
    kvpr.UseKvpr(Split(l, host_pieces), options);
    for (int64_t step = 0; step < Steps(); ++step) {
      SCOPED_TRACE(step);
      ExpectClose(kvpr.Step(), expected[step]);
    }
    kvpr.LeaveAll();
    EXPECT_GT(planned, 0);
    EXPECT_EQ(host->attended, planned * loaded.model->config().layers);
  }
}

// What the host attends to is what does not cross the link. The ring holds two chunks, and a layer has more: so only
// copies of the first layers run ahead of their step.
TEST_P(KvprHostLaneTest, SavesTheLinkWhatTheHostAttendsTo) {
  const LoadedModel loaded = LoadHeads(GetParam());
  const auto counting = std::make_shared<CountingDevice>(loaded.device);
  const LoadedModel counted{loaded.file, counting,
                            *LoadModel(loaded.file, counting, kUsePrefill | kUseDecode, [](int, int) {})};
  KvprWorld kvpr(counted, {1024, 1000}, 4);
  std::vector<LaneRows> steps;
  KvprOptions options = Options(loaded, kvpr.host(), 3);
  options.on_step = [&steps](const KvprStep& step) { steps.push_back(step.plan.rows); };
  kvpr.UseKvpr(Split(Always(64), Always(1)), options);
  kvpr.Step();  // all passes, for the windows to stay
  counting->Watch(kvpr.store());
  for (int step = 0; step < 3; ++step) kvpr.Step();
  kvpr.LeaveAll();
  ASSERT_EQ(steps.size(), 4u);
  int64_t streamed = 0;
  for (size_t step = 1; step < steps.size(); ++step) {
    EXPECT_EQ(steps[step].host, 2 * kSmallestPiece);
    streamed += steps[step].streamed;
  }
  EXPECT_GT(streamed, 0);
  EXPECT_EQ(counting->kv_bytes[static_cast<size_t>(loaded.model->config().layers - 1)],
            static_cast<size_t>(streamed * loaded.model->kv_row_bytes()));
}

// All of the first sequence that is in front of its window is the host's.
TEST_P(KvprHostLaneTest, TheHostReadsItsPartAndNobodyElseDoes) {
  const LoadedModel loaded = LoadHeads(GetParam());
  const std::vector<int64_t> prompts = {1000, 100};
  KvprWorld kvpr(loaded, prompts, 6), plain(loaded, prompts, 6);
  plain.UseDecodeLoop();
  int64_t host_end = 0;
  KvprOptions options = Options(loaded, kvpr.host(), 3);
  options.on_step = [&host_end](const KvprStep& step) { host_end = step.plan.cuts[0].host_end; };
  kvpr.UseKvpr(Split(Always(0), Always(100)), options);
  for (int step = 0; step < 2; ++step) ExpectClose(kvpr.Step(), plain.Step());
  kvpr.Poison(0, 768, 1000);  // is in the window
  kvpr.PoisonX(0, 0, 1000);   // of no use
  ExpectClose(kvpr.Step(), plain.Step());
  EXPECT_GT(host_end, 0);
  EXPECT_LE(host_end, 768);
  kvpr.Poison(0, 0, 1);
  const StepLogits poisoned = kvpr.Step();
  EXPECT_TRUE(std::isnan(poisoned[0][0])) << "the poison works";
  EXPECT_FALSE(std::isnan(poisoned[1][0]));
}

// Windows grow over what the host had, when others go.
TEST_P(KvprHostLaneTest, SequencesComeAndGo) {
  const LoadedModel loaded = LoadHeads(GetParam());
  const std::vector<int64_t> prompts = {255, 900, 300, 20};
  KvprWorld plain(loaded, prompts, 20), kvpr(loaded, prompts, 20);
  plain.UseDecodeLoop();
  int64_t planned = 0;
  KvprOptions options = Options(loaded, kvpr.host(), 4);
  options.on_step = [&planned](const KvprStep& step) { planned += step.plan.rows.host; };
  kvpr.UseKvpr(Split(Always(0), Always(100)), options);
  const std::vector<std::vector<size_t>> steps = {{1}, {1}, {0, 1}, {0, 1, 2}, {2, 1}, {2, 1, 3}, {1, 3}, {1}, {3, 1}};
  for (const std::vector<size_t>& picked : steps) ExpectClose(kvpr.Step(picked), plain.Step(picked));
  kvpr.End(2);
  for (int step = 0; step < 3; ++step) ExpectClose(kvpr.Step({1, 0}), plain.Step({1, 0}));
  kvpr.End(0);
  for (int step = 0; step < 3; ++step) ExpectClose(kvpr.Step({1}), plain.Step({1}));
  EXPECT_GT(planned, 0);
}

INSTANTIATE_TEST_SUITE_P(Heads, KvprHostLaneTest, ::testing::Values(kMha, kGqa, kMqa),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace runahead
