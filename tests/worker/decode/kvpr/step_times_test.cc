#include "worker/decode/kvpr/step_times.h"

#include <gtest/gtest.h>

#include "tests/testing/fake_device.h"

namespace runahead {
namespace {

absl::Time At(int64_t ms) {
  return absl::UnixEpoch() + absl::Milliseconds(ms);
}

TEST(StepTimes, AddsUpLanesAndWhatTheDeviceHides) {
  StepTimes times;
  times.Add({StepLane::kProject, 0, At(0), At(10)});
  times.Add({StepLane::kLink, 0, At(5), At(25)});
  times.Add({StepLane::kRecompute, 0, At(20), At(30)});
  times.Add({StepLane::kLink, 1, At(28), At(40)});
  times.Add({StepLane::kAttend, 0, At(30), At(35)});
  times.Add({StepLane::kWindow, 0, At(35), At(38)});
  times.Add({StepLane::kStore, 0, At(0), At(100)});
  EXPECT_DOUBLE_EQ(times.Busy(StepLane::kLink), 0.032);
  EXPECT_DOUBLE_EQ(times.Busy(StepLane::kProject), 0.010);
  EXPECT_DOUBLE_EQ(times.AttendSeconds(), 0.008);
  EXPECT_DOUBLE_EQ(times.DeviceSeconds(), 0.038);
  EXPECT_NEAR(times.OverlapRatio(), (0.005 + 0.005 + 0.002 + 0.005 + 0.003) / 0.028, 1e-9)
      << "the device is busy for less";
}

TEST(StepTimes, WeightsShareTheLinkWithKv) {
  StepTimes times;
  times.Add({StepLane::kLink, 0, At(0), At(10)});
  times.Add({StepLane::kLink, 1, At(12), At(14)});
  times.Add({StepLane::kWeights, 1, At(5), At(20)});
  times.Add({StepLane::kProject, 1, At(15), At(35)});
  times.Add({StepLane::kWeights, 2, At(30), At(40)});
  EXPECT_DOUBLE_EQ(times.Busy(StepLane::kLink), 0.012);
  EXPECT_DOUBLE_EQ(times.LinkSeconds(), 0.030);
  EXPECT_NEAR(times.OverlapRatio(), (0.005 + 0.005) / 0.020, 1e-9);
}

TEST(StepTimes, TheWayOfQAndPartialsHasItsWaits) {
  StepTimes times;
  times.Add({StepLane::kProject, 0, At(0), At(2)});   // the embedding
  times.Add({StepLane::kProject, 0, At(2), At(10)});  // q is made
  times.Add({StepLane::kSignal, 0, At(12), At(13)});  // behind another copy
  times.Add({StepLane::kHost, 0, At(14), At(30)});    // the host's thread had to wake up
  times.Add({StepLane::kWindow, 0, At(15), At(20)});
  times.Add({StepLane::kSignal, 0, At(33), At(35)});
  times.Add({StepLane::kProject, 0, At(36), At(40)});
  times.Add({StepLane::kProject, 1, At(40), At(50)});  // a layer without a host lane
  EXPECT_DOUBLE_EQ(times.Busy(StepLane::kSignal), 0.003);
  EXPECT_DOUBLE_EQ(times.SignalSeconds(), 0.004 + 0.005);
}

TEST(StepTimes, AStepWithoutDeviceWorkTakesNothing) {
  EXPECT_EQ(StepTimes().DeviceSeconds(), 0);
  EXPECT_EQ(StepTimes().OverlapRatio(), 0);
}

TEST(LaneSpan, LastsFromWhatCameBeforeToItsOwnEnd) {
  testing::FakeDevice device;
  const auto stream = device.NewStream("lane");
  const auto times = std::make_shared<StepTimes>();
  const EventSource before, inside;
  device.WaitFor(*stream, before.event());
  {
    const LaneSpan span(device, *stream, times, StepLane::kLink, 3);
    device.WaitFor(*stream, inside.event());
  }
  EXPECT_TRUE(times->spans().empty());
  before.Fire(absl::OkStatus());
  inside.Fire(absl::OkStatus());
  ASSERT_TRUE(device.Record(*stream).Wait().ok());
  ASSERT_EQ(times->spans().size(), 1u);
  const StepTimes::Span span = times->spans().front();
  EXPECT_EQ(span.lane, StepLane::kLink);
  EXPECT_EQ(span.layer, 3);
  EXPECT_LE(span.begin, span.end);
}

}  // namespace
}  // namespace runahead
