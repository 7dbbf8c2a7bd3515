// What steps are measured to take, and what the split makes of it while they run.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/small_model.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

constexpr int64_t kMeasuredLayers = 2;

LoadedModel LoadBehind(std::shared_ptr<EmulatedLink> link, int64_t layers = kMeasuredLayers) {
  SyntheticModel model = SmallModel(layers);
  model.kv_heads = model.heads;
  LoadedModel loaded;
  loaded.file = *OpenGguf(WriteSynthetic(model, "kvpr_measured"));
  loaded.device = *NewCpuDevice({.threads = 1, .emulated_link = std::move(link)});
  loaded.model = *LoadModel(loaded.file, loaded.device, kUseDecode | kUseRecompute, [](int, int) {});
  return loaded;
}

double SecondsOf(const StepTimes& times, StepLane lane) {
  double seconds = 0;
  for (const StepTimes::Span& span : times.spans()) {
    if (span.lane == lane) seconds += absl::ToDoubleSeconds(span.end - span.begin);
  }
  return seconds;
}

// Each number is that of its own spans; and the host's is no less than its rate allows. (Copies may be, in a step: the
// link makes up for copies that returned late.)
TEST(KvprMeasuredTest, TheSplitIsToldWhatALayerTookLaneByLane) {
  constexpr double kHostGbps = 2;
  const LoadedModel loaded = LoadBehind(*EmulatedLink::Create({.gbps = 4}));
  KvprWorld world(loaded, {1000, 300}, 6);
  auto split = std::make_unique<GivenSplit>([](size_t, const LaneShape&) { return 128; },
                                            [](size_t, const LaneShape&) { return 1; });
  split->recompute_s = 1;  // so no X stays on the device
  const GivenSplit& told = *split;
  const int64_t row = loaded.model->kv_row_bytes(), x_row = 4 * loaded.model->config().hidden;
  std::vector<KvprStep> steps;
  KvprOptions options{.device_bytes = (2 * 256 + 4 * 2) * (row + x_row) + 2 * kKvBlockTokens * row * kMeasuredLayers,
                      .chunk_tokens = 256,
                      .slots = 2,
                      .host = &world.host(),
                      .emulated_host_gbps = kHostGbps,
                      .on_step = [&steps](const KvprStep& step) { steps.push_back(step); }};
  world.UseKvpr(std::move(split), options);
  for (int step = 0; step < 4; ++step) world.Step();
  world.LeaveAll();
  ASSERT_EQ(steps.size(), 4u);
  ASSERT_EQ(told.observed.size(), steps.size());
  const LaneRows& last = told.observed_rows.back();
  EXPECT_EQ(last.host, 2 * 256);
  EXPECT_EQ(last.recomputed, 128);  // of the first sequence: all of the second is the host's or resident
  for (size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(i);
    const LaneMeasurement& seen = told.observed[i];
    const StepTimes& times = *steps[i].times;
    const LaneRows& rows = told.observed_rows[i];
    EXPECT_EQ(rows, steps[i].plan.rows);
    EXPECT_DOUBLE_EQ(seen.link_s * kMeasuredLayers, SecondsOf(times, StepLane::kLink));
    EXPECT_DOUBLE_EQ(seen.recompute_s * kMeasuredLayers, SecondsOf(times, StepLane::kRecompute));
    EXPECT_DOUBLE_EQ(seen.project_s * kMeasuredLayers, SecondsOf(times, StepLane::kProject));
    EXPECT_DOUBLE_EQ(seen.attend_s * kMeasuredLayers,
                     SecondsOf(times, StepLane::kAttend) + SecondsOf(times, StepLane::kWindow));
    EXPECT_DOUBLE_EQ(seen.host_attend_s * kMeasuredLayers, SecondsOf(times, StepLane::kHost));
    EXPECT_DOUBLE_EQ(seen.signal_s * kMeasuredLayers, times.SignalSeconds());
    EXPECT_DOUBLE_EQ(seen.layer_s * kMeasuredLayers, times.DeviceSeconds());
    EXPECT_GE(seen.layer_s, 0.999 * (seen.project_s + seen.attend_s));
    EXPECT_GE(seen.host_attend_s, 0.9 * static_cast<double>(rows.host * row) * 8 / kHostGbps / 1e9);
    for (const double seconds : {seen.link_s, seen.recompute_s, seen.project_s, seen.attend_s}) EXPECT_GT(seconds, 0);
  }
  EXPECT_GT(told.observed.back().signal_s, 0);
}

// What the split is told of attention is for all positions on the device, resident ones too.
TEST(KvprMeasuredTest, AttentionOverTheWindowCountsAsAttention) {
  const LoadedModel loaded = LoadBehind(nullptr);
  KvprWorld world(loaded, {900}, 4);
  auto split = SplitAt(0);
  split->recompute_s = 1;  // so no X stays on the device
  const GivenSplit& told = *split;
  std::shared_ptr<const StepTimes> times;
  KvprOptions options = WindowsOf(loaded, 1, 3);
  options.on_step = [&times](const KvprStep& step) { times = step.times; };
  world.UseKvpr(std::move(split), options);
  for (int step = 0; step < 3; ++step) world.Step();
  world.LeaveAll();
  ASSERT_EQ(told.observed_rows.back(), (LaneRows{.streamed = 256, .resident = 903 - 256}));
  std::map<StepLane, int64_t> spans;
  for (const StepTimes::Span& span : times->spans()) ++spans[span.lane];
  EXPECT_EQ(spans[StepLane::kAttend], kMeasuredLayers) << "the one piece";
  EXPECT_EQ(spans[StepLane::kWindow], kMeasuredLayers);
  EXPECT_EQ(spans[StepLane::kProject], 2 * kMeasuredLayers + 2) << "Q, K and V; the MLP; embedding and head";
  const double attend_s = SecondsOf(*times, StepLane::kAttend) + SecondsOf(*times, StepLane::kWindow);
  EXPECT_DOUBLE_EQ(told.observed.back().attend_s * kMeasuredLayers, attend_s);
}

// The same spans that the split is told of, step by step, in the order of the lanes' ends.
TEST(KvprMeasuredTest, ASequenceThatIsTracedRecordsWhatItsStepsAreMadeOf) {
  const LoadedModel loaded = LoadBehind(*EmulatedLink::Create({.gbps = 4}));
  KvprWorld world(loaded, {1000, 300}, 6);
  std::vector<KvprStep> steps;
  KvprOptions options{.chunk_tokens = 256, .on_step = [&steps](const KvprStep& step) { steps.push_back(step); }};
  world.UseKvpr(SplitAt(256), options);
  SpanRecorder recorder;
  world.Step();  // before it is traced
  for (int step = 0; step < 2; ++step) {
    world.recorder = &recorder;
    world.Step();
  }
  world.LeaveAll();
  ASSERT_EQ(steps.size(), 3u);
  const SpanRecorder::Recorded recorded = recorder.Take();
  for (const auto& [name, lane] : {std::pair("transfer", StepLane::kLink), std::pair("recompute", StepLane::kRecompute),
                                   std::pair("project", StepLane::kProject), std::pair("attend", StepLane::kAttend)}) {
    SCOPED_TRACE(name);
    std::vector<int64_t> expected, actual;
    for (size_t step = 1; step < steps.size(); ++step) {
      for (const StepTimes::Span& span : steps[step].times->spans()) {
        if (span.lane == lane) expected.push_back(absl::ToUnixNanos(span.begin));
      }
    }
    for (const RecordedSpan& span : recorded.spans) {
      if (std::string(span.name) == name) actual.push_back(span.start_ns);
    }
    EXPECT_FALSE(actual.empty());
    EXPECT_EQ(actual, expected);
  }
}

// Tells the controller what steps would take by costs that are given, each time off by up to a twentieth: on a machine
// that other work shares, what copies and threads really take says more of that work than of a link.
class SimulatedTimes final : public SplitSource {
 public:
  explicit SimulatedTimes(const LaneCosts& costs)
      : costs_(costs), inner_(*SplitController::Create(SplitObjective::kStep, costs)) {}
  void SetLink(double bytes_per_s) { costs_.link_bytes_per_s = bytes_per_s; }
  absl::StatusOr<LanePlan> Plan(absl::Span<const LaneShape> shapes) override { return inner_.Plan(shapes); }
  void Observe(const LanePlan& plan, const LaneMeasurement&) override {
    LaneCosts now = costs_;
    now.link_bytes_per_s *= Off();
    now.recompute_s *= Off();
    const LaneTimes times = TimesOfLanes(SplitObjective::kStep, now, plan.rows);
    inner_.Observe(plan, {.link_s = times.link_s,
                          .recompute_s = now.recompute_s * static_cast<double>(plan.rows.computed),
                          .layer_s = times.layer_s * Off()});
  }
  void Restart(const LaneCosts&) override {}
  LaneCosts costs() const override { return inner_.costs(); }

 private:
  double Off() { return std::uniform_real_distribution<double>(0.95, 1.05)(random_); }

  LaneCosts costs_;
  ControlledSplit inner_;
  std::mt19937 random_{17};
};

// Where a link of v bytes a second and the device meet: X of l rows and KV of the others take as long as recomputing l.
double BestL(const LaneCosts& costs, double bytes_per_s, double length) {
  return costs.kv_bytes * length / (costs.recompute_s * bytes_per_s + costs.kv_bytes - costs.x_bytes);
}

// Steps of the smallest split and little more, by which the controller sees what it takes.
bool IsLook(int64_t l) {
  return l <= kSplitTile;
}

// In the loop a step is planned before the one in front of it is measured.
TEST(KvprMeasuredTest, ALinkOfHalfTheRateMovesTheSplitOnceAndForAll) {
  constexpr int64_t kLength = 1000, kBefore = 20, kSettles = 10, kStays = 20;
  const LoadedModel loaded = LoadBehind(nullptr, 1);
  LaneCosts costs;
  costs.link_bytes_per_s = 1e8;
  costs.kv_bytes = static_cast<double>(loaded.model->kv_row_bytes());
  costs.x_bytes = costs.kv_bytes / 2;
  costs.recompute_s = 15e-6;
  KvprWorld world(loaded, {kLength}, kBefore + kSettles + kStays + 2);
  std::vector<int64_t> l;
  KvprOptions options;
  options.on_step = [&l](const KvprStep& step) { l.push_back(step.plan.rows.recomputed); };
  auto split = std::make_unique<SimulatedTimes>(costs);
  SimulatedTimes& simulated = *split;
  world.UseKvpr(std::move(split), options);
  for (int64_t step = 0; step < kBefore; ++step) world.Step();
  simulated.SetLink(costs.link_bytes_per_s / 2);
  for (int64_t step = 0; step < kSettles + kStays; ++step) world.Step();
  world.LeaveAll();
  ASSERT_EQ(l.size(), static_cast<size_t>(kBefore + kSettles + kStays));
  const double before = BestL(costs, costs.link_bytes_per_s, kLength);
  const double after = BestL(costs, costs.link_bytes_per_s / 2, kLength);
  ASSERT_GT(after, before + 3 * kSplitTile);
  int64_t looks = 0;
  for (int64_t step = 0; step < kBefore + kSettles + kStays; ++step) {
    const bool settles = step < kSettles || (step >= kBefore && step < kBefore + kSettles);
    if (settles) continue;
    looks += IsLook(l[step]);
    if (IsLook(l[step])) continue;
    EXPECT_NEAR(static_cast<double>(l[step]), step < kBefore ? before : after, 1.5 * kSplitTile) << step;
  }
  EXPECT_LE(looks, 4);
}

}  // namespace
}  // namespace runahead
