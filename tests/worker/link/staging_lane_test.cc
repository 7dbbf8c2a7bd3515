#include "worker/link/staging_lane.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/remote_device.h"
#include "tests/worker/link/host_buffer.h"

namespace runahead {
namespace {

using ::runahead::testing::FakeClock;
using ::runahead::testing::Pattern;
using ::runahead::testing::RemoteDevice;

constexpr size_t kBytes = 1000;
constexpr int kChunks = 8;

class StagingLaneProgress : public ::testing::Test {
 protected:
  ~StagingLaneProgress() override { lane_->Stop(); }
  Event Request() {
    EventSource granted;
    lane_->Request(kBytes, [this, granted](absl::StatusOr<BufferRef> room) {
      if (!entered_.event().fired()) entered_.Fire(absl::OkStatus());
      let_go_.event().Wait().IgnoreError();
      room_ = *std::move(room);
      granted.Fire(absl::OkStatus());
    });
    return granted.event();
  }
  // Whatever the lane's thread did before has been counted.
  void AwaitRest() {
    EXPECT_TRUE(testing::Await("the lane's thread is at rest", [&] { return !meter_->Read().computing; }));
  }

  FakeClock clock_;
  const std::shared_ptr<ProgressMeter> meter_ = std::make_shared<ProgressMeter>(clock_);
  RemoteDevice device_;
  EventSource entered_, let_go_;
  const std::shared_ptr<StagingLane> lane_ = StagingLane::Create(device_, "test", kChunks * 1024, meter_);
  BufferRef room_;
};

TEST_F(StagingLaneProgress, ACopyThatTheDeviceDoesNotEndCounts) {
  let_go_.Fire(absl::OkStatus());
  ASSERT_TRUE(Request().Wait().ok());
  AwaitRest();
  EventSource gate, copied;
  device_.HoldCopies(gate.event());
  lane_->Copy(device_.Holding(Pattern(kBytes, 1)), room_,
              [copied](const absl::Status& status) { copied.Fire(status); });
  device_.AwaitCopyEnqueued();
  clock_.Advance(absl::Seconds(7));
  const ProgressMeter::Reading hung = meter_->Read();
  EXPECT_TRUE(hung.computing);
  EXPECT_EQ(hung.since, absl::Seconds(7));
  EXPECT_EQ(hung.done, 0u);
  gate.Fire(absl::OkStatus());
  EXPECT_TRUE(copied.event().Wait().ok());
  AwaitRest();
  EXPECT_EQ(meter_->Read().done, 1u);
  room_ = {};
}

TEST_F(StagingLaneProgress, AThreadThatStandsStillCounts) {
  const Event first = Request();
  ASSERT_TRUE(entered_.event().Wait().ok());  // and holds the thread
  clock_.Advance(absl::Seconds(7));
  EXPECT_TRUE(meter_->Read().computing);
  EXPECT_EQ(meter_->Read().since, absl::Seconds(7));
  let_go_.Fire(absl::OkStatus());
  EXPECT_TRUE(first.Wait().ok());
  AwaitRest();
  room_ = {};
}

// All room is held: that others give some back is not the lane's to do.
TEST_F(StagingLaneProgress, AWaitForRoomDoesNotCount) {
  let_go_.Fire(absl::OkStatus());
  std::vector<BufferRef> held;
  for (int i = 0; i < kChunks; ++i) {
    ASSERT_TRUE(Request().Wait().ok());
    held.push_back(std::exchange(room_, {}));
  }
  const Event next = Request();
  AwaitRest();
  EXPECT_FALSE(next.fired());
  held.clear();
  EXPECT_TRUE(next.Wait().ok());
  room_ = {};
}

}  // namespace
}  // namespace runahead
