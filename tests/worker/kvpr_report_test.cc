#include "worker/kvpr_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace runahead {
namespace {

absl::Time After(int64_t ms) {
  return absl::UnixEpoch() + absl::Milliseconds(ms);
}

TEST(KvprReport, ALaneHasTheSecondsInWhichItWasBusy) {
  const auto times = std::make_shared<StepTimes>();
  times->Add({StepLane::kProject, 0, After(0), After(100)});
  times->Add({StepLane::kRecompute, 0, After(100), After(101)});
  times->Add({StepLane::kAttend, 0, After(101), After(150)});
  times->Add({StepLane::kWindow, 0, After(150), After(154)});
  times->Add({StepLane::kLink, 0, After(0), After(2)});
  times->Add({StepLane::kHost, 0, After(101), After(104)});
  KvprStep step{.plan = {}, .times = times};
  step.plan.rows = {.recomputed = 10, .computed = 64, .x_streamed = 8, .streamed = 20, .host = 30, .resident = 40};
  step.plan.cuts.resize(2);
  LaneCosts costs;
  costs.kv_bytes = 100;
  costs.x_bytes = 50;
  costs.other_link_bytes = 600;
  costs.link_bytes_per_s = 7;
  step.plan.times = {.link_s = 0.001, .device_s = 0.05, .layer_s = 0.05};
  step.rest = SplitRest::kSlower;
  const KvprObservation seen = ObservationOf(step, costs, 3);
  EXPECT_DOUBLE_EQ(seen.predicted_s, 0.15);
  EXPECT_DOUBLE_EQ(seen.measured_s, 0.154);
  EXPECT_EQ(seen.bound, LaneBound::kDevice);
  EXPECT_EQ(seen.rest, SplitRest::kSlower);
  const auto expect = [&](KvLane lane, int64_t tokens, int64_t bytes, double seconds) {
    const KvprObservation::Lane& of = seen.lanes[static_cast<int>(lane)];
    EXPECT_EQ(of.tokens, tokens);
    EXPECT_EQ(of.bytes, bytes);
    EXPECT_DOUBLE_EQ(of.seconds, seconds);
  };
  expect(KvLane::kRecomputed, 10, 3 * 8 * 50, 0.001);
  expect(KvLane::kStreamed, 20, 3 * 20 * 100, 0.002);
  expect(KvLane::kHost, 30, 3 * 30 * 100, 0.003);
  expect(KvLane::kResident, 40, 0, 0.004);
  EXPECT_EQ(seen.split_tokens, 5);
  EXPECT_DOUBLE_EQ(seen.recompute_s, 0.001);
  EXPECT_DOUBLE_EQ(seen.transfer_s, 0.002);
  EXPECT_DOUBLE_EQ(seen.link_bytes_per_s, 3 * (8 * 50 + 20 * 100 + 600) / 0.002) << "whatever the costs say";
}

TEST(KvprReport, TheLineNamesTheRequestAndTheMeanOfItsSteps) {
  KvprSequenceReport report{.request_id = "a\nb", .lease = 0x2a, .steps = 2};
  report.recomputed = 20;
  report.streamed = 40;
  report.on_host = 60;
  report.resident = 80;
  report.overlap = 1.5;
  report.measured_s = 0.025;
  report.predicted_s = 0.022;
  report.bound_by = {0, 2, 0, 0};
  EXPECT_EQ(SequenceLine(report),
            "request a\\nb, lease 000000000000002a: 2 steps; of 100 positions a step 10 recomputed, 20 copied, 30 "
            "attended on the host, 40 resident; overlap 0.75; a step took 12.5 ms, predicted 11, bound by device in 2 "
            "of them");
  report.rests = 1;
  report.rest = SplitRest::kMeasuring;
  EXPECT_THAT(SequenceLine(report), ::testing::EndsWith("in 2 of them; 1 steps without the solver's split"));
  report.rest = SplitRest::kSlower;
  report.rest_for = absl::Milliseconds(1500);
  EXPECT_THAT(SequenceLine(report), ::testing::EndsWith("; 1 steps without the solver's split, slower for 1.5s"));
}

}  // namespace
}  // namespace runahead
