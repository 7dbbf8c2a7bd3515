#include "worker/link/paced_edge.h"

#include "tests/testing/fake_clock.h"
#include "tests/testing/loopback.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/loopback_world.h"

namespace runahead {
namespace {

using ::runahead::testing::EdgeContract;
using ::runahead::testing::EdgeWorld;
using ::runahead::testing::FakeClock;
using ::runahead::testing::LoopbackWorld;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

std::unique_ptr<EdgeWorld> PacedWorld() {
  return std::make_unique<LoopbackWorld>([](std::unique_ptr<EdgeFactory> factory) {
    return std::make_unique<PacedEdgeFactory>(std::move(factory), 1000, RealClock());
  });
}
INSTANTIATE_TEST_SUITE_P(Paced, EdgeContract, ::testing::Values(PacedWorld));

class PacedEdge : public ::testing::Test {
 protected:
  PacedEdge() {
    // 1,000 bytes a second.
    a_ = std::make_unique<PacedEdgeFactory>(network_->Join({"a", 1}), 8e-6, clock_);
    b_ = network_->Join({"b", 2});
  }
  static bool Arrives(const Event& event) { return event.Wait(testing::LongestWait()).ok(); }

  FakeClock clock_;
  std::shared_ptr<LoopbackNetwork> network_ = LoopbackNetwork::Create(LoopbackNetwork::Delivery::kImmediate);
  std::unique_ptr<PacedEdgeFactory> a_;
  std::unique_ptr<EdgeFactory> b_;
};

TEST_F(PacedEdge, FramesPassOneAfterTheOtherAtTheRate) {
  const auto a = *a_->Open({"b", 2});
  const auto b = *b_->Open({"a", 1});
  const Event first = b->Recv({1, 0, 0}, Room(500));
  const Event second = b->Recv({1, 1, 0}, Room(250));
  EventSource computed;
  a->Send({1, 1, 0}, Pattern(250, 1), computed.event());
  a->Send({1, 0, 0}, Pattern(500, 1), Event());
  computed.Fire(absl::OkStatus());  // ready second, so it passes second
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Milliseconds(499));
  EXPECT_FALSE(first.fired());
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(Arrives(first));
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Milliseconds(249));
  EXPECT_FALSE(second.fired());
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(Arrives(second));
}

TEST_F(PacedEdge, TheOtherDirectionAndIdleTimeAreFree) {
  const auto a = *a_->Open({"b", 2});
  const auto b = *b_->Open({"a", 1});
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(100));  // idle time is not saved up
  const Event slow = b->Recv({1, 0, 0}, Room(1000));
  a->Send({1, 0, 0}, Pattern(1000, 1), Event());
  b->Send({1, 0, 0}, Pattern(1000, 1), Event());
  EXPECT_TRUE(Arrives(a->Recv({1, 0, 0}, Room(1000))));
  EXPECT_FALSE(slow.fired());
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Arrives(slow));
}

TEST_F(PacedEdge, NoiseMakesFramesTakeLonger) {
  const LinkNoise noise{.probability = 1, .max_factor = 3, .seed = 7};
  PacedEdgeFactory noisy(network_->Join({"c", 3}), 8e-6, clock_, noise);
  const auto c = *noisy.Open({"b", 2});
  const auto b = *b_->Open({"c", 3});
  FrameNoise draws(noise, 0);
  for (int layer = 0; layer < 3; ++layer) {
    const absl::Duration takes = absl::Seconds(draws.Next());  // 1,000 bytes
    EXPECT_GT(takes, absl::Seconds(1));
    const Event arrived = b->Recv({1, layer, 0}, Room(1000));
    c->Send({1, layer, 0}, Pattern(1000, 1), Event());
    clock_.AwaitWaiters(2);  // a_'s timer, too
    clock_.Advance(takes - absl::Milliseconds(1));
    EXPECT_FALSE(arrived.fired());
    clock_.AwaitWaiters(2);
    clock_.Advance(absl::Milliseconds(1));
    EXPECT_TRUE(Arrives(arrived));
  }
}

TEST_F(PacedEdge, AReceiveIsOnTheWireForAsLongAsTheRateSays) {
  const auto a = *a_->Open({"b", 2});
  const auto b = *b_->Open({"a", 1});
  const Reception received = a->Recv({1, 0, 0}, Room(250));
  b->Send({1, 0, 0}, Pattern(250, 1), Event());
  EXPECT_TRUE(Arrives(received));
  EXPECT_GE(received.wire()->last - received.wire()->first, absl::Milliseconds(250));
}

TEST_F(PacedEdge, AClosedEdgeIsForgotten) {
  auto edge = *a_->Open({"b", 2});
  EXPECT_EQ(*a_->Open({"b", 2}), edge);
  const std::weak_ptr<Edge> seen = edge;
  edge.reset();
  EXPECT_FALSE(seen.expired()) << "it lives until it is closed, so that what it sends later keeps to the rate";
  a_->Close({"b", 2});
  EXPECT_TRUE(seen.expired());
  a_->Close({"never met", 9});
}

TEST_F(PacedEdge, ADroppedJobAndAClosedFactoryCancelWhatWaits) {
  const auto a = *a_->Open({"b", 2});
  const Event dropped = a->Send({1, 0, 0}, Pattern(1000, 1), Event());
  const Event waiting = a->Send({2, 0, 0}, Pattern(1000, 1), Event());
  a->Drop(1);
  EXPECT_EQ(dropped.Wait(testing::LongestWait()).code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(waiting.fired());
  a_.reset();
  EXPECT_EQ(waiting.Wait(testing::LongestWait()).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace runahead
