#include "worker/link/edge_core.h"

#include <map>
#include <random>

#include "tests/testing/loopback.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/loopback_world.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::EdgeContract;
using ::runahead::testing::EdgeWorld;
using ::runahead::testing::LoopbackWorld;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

INSTANTIATE_TEST_SUITE_P(Loopback, EdgeContract,
                         ::testing::Values([] { return std::unique_ptr<EdgeWorld>(new LoopbackWorld); }));

TEST(Loopback, ARestartAtTheSameAddressIsAnotherPeer) {
  const auto network = LoopbackNetwork::Create(LoopbackNetwork::Delivery::kImmediate);
  const auto a = network->Join({"a", 1});
  auto b = network->Join({"b", 2});
  const auto old_edge = *a->Open({"b", 2});
  network->Kill({"b", 2});
  b = network->Join({"b", 3});
  EXPECT_EQ(a->Open({"b", 2}).status().code(), absl::StatusCode::kUnavailable);
  const auto edge = *a->Open({"b", 3});
  const auto back = *b->Open({"a", 1});
  edge->Send({1, 0, 0}, Pattern(10, 1), Event());
  EXPECT_TRUE(back->Recv({1, 0, 0}, Room(10)).Wait(testing::LongestWait()).ok());
  EXPECT_FALSE(old_edge->Health().ok());
}

// Two processes, several jobs each way, steps taken in random order between random calls; sometimes a job is dropped by
// one or both sides, sometimes a process dies. Whatever happens, every event fires, what fired OK carries the right
// bytes, and no state stays.
class Interleaving : public ::testing::TestWithParam<int> {
 protected:
  struct Frame {
    FrameId id;
    int from = 0;
    size_t bytes = 0;
    BufferRef into;
    Event sent, got;
  };

  Interleaving() : random_(GetParam()) {}
  size_t Pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  bool Chance(int percent) { return Pick(100) < static_cast<size_t>(percent); }

  void Plan() {
    for (JobId job = 1; job <= 6; ++job) {
      const bool both_ways = Chance(30);
      for (int i = 0; i < 5; ++i) {
        frames_.push_back({{job, i, 0}, both_ways ? static_cast<int>(Pick(2)) : 0, Pick(50), {}, {}, {}});
      }
      finish_on_[job] = both_ways ? 2 : 1;
      dropped_[job] = Chance(25);
    }
    for (size_t i = 0; i < frames_.size(); ++i) {
      Frame& frame = frames_[i];
      frame.into = Room(frame.bytes);
      ready_.emplace_back();
      calls_.push_back([this, &frame, i] {
        frame.sent = edges_[frame.from]->Send(frame.id, Pattern(frame.bytes, frame.id.job), ready_[i].event());
      });
      calls_.push_back([this, &frame] { frame.got = edges_[1 - frame.from]->Recv(frame.id, frame.into); });
      calls_.push_back([this, i] { ready_[i].Fire(absl::OkStatus()); });
    }
    std::shuffle(calls_.begin(), calls_.end(), random_);
    for (const auto& [job, sides] : finish_on_) {
      if (dropped_[job]) {
        Insert([this, job = job] { edges_[Pick(2)]->Drop(job); });
        if (Chance(30)) Insert([this, job = job] { edges_[Pick(2)]->Drop(job); });
      }
    }
    for (const auto& [job, sides] : finish_on_) {
      // A receiver that never sends need not call Finish, and a dropped job need not be finished.
      for (int side = 0; side < sides; ++side) {
        if (!dropped_[job] || Chance(50)) {
          calls_.push_back([this, job = job, side] { finished_.push_back({job, edges_[side]->Finish(job)}); });
        }
      }
    }
  }
  void Insert(std::function<void()> call) {
    calls_.insert(calls_.begin() + static_cast<std::ptrdiff_t>(Pick(calls_.size())), std::move(call));
  }
  void Start() {
    network_ = LoopbackNetwork::Create(LoopbackNetwork::Delivery::kManual);
    for (int i = 0; i < 2; ++i) processes_.push_back(network_->Join(peers_[i]));
    for (int i = 0; i < 2; ++i) edges_.push_back(*processes_[i]->Open(peers_[1 - i]));
  }
  void RunAll(size_t kill_at) {
    for (size_t i = 0; i < calls_.size(); ++i) {
      while (Chance(60) && network_->pending() > 0) network_->Deliver(Pick(network_->pending()));
      if (i == kill_at) network_->Kill(peers_[1]);
      calls_[i]();
    }
    while (network_->pending() > 0) network_->Deliver(Pick(network_->pending()));
  }

  std::mt19937 random_;
  const PeerId peers_[2] = {{"a", 1}, {"b", 2}};
  std::shared_ptr<LoopbackNetwork> network_;
  std::vector<std::unique_ptr<EdgeFactory>> processes_;
  std::vector<std::shared_ptr<Edge>> edges_;
  std::vector<Frame> frames_;
  std::vector<EventSource> ready_;
  std::vector<std::function<void()>> calls_;
  std::map<JobId, int> finish_on_;
  std::map<JobId, bool> dropped_;
  std::vector<std::pair<JobId, Event>> finished_;
};

TEST_P(Interleaving, EveryEventFiresAndNoStateStays) {
  Start();
  Plan();
  RunAll(/*kill_at=*/calls_.size());
  for (const Frame& frame : frames_) {
    ASSERT_TRUE(frame.sent.fired() && frame.got.fired()) << "job " << frame.id.job << " layer " << frame.id.layer;
    if (frame.got.status()->ok()) {
      EXPECT_EQ(Bytes(frame.into), Bytes(Pattern(frame.bytes, frame.id.job)));
    }
    if (!dropped_[frame.id.job]) {
      EXPECT_TRUE(frame.got.status()->ok()) << *frame.got.status();
      EXPECT_TRUE(frame.sent.status()->ok()) << *frame.sent.status();
    }
  }
  for (const auto& [job, event] : finished_) {
    ASSERT_TRUE(event.fired()) << "job " << job;
    EXPECT_TRUE(dropped_[job] || event.status()->ok()) << *event.status();
  }
  EXPECT_EQ(network_->live_jobs(peers_[0], peers_[1]), 0u);
  EXPECT_EQ(network_->live_jobs(peers_[1], peers_[0]), 0u);
}

TEST_P(Interleaving, ADeathAtAnyMomentFiresEverything) {
  Start();
  Plan();
  RunAll(/*kill_at=*/Pick(calls_.size()));
  for (const Frame& frame : frames_) {
    ASSERT_TRUE(frame.sent.fired() && frame.got.fired()) << "job " << frame.id.job << " layer " << frame.id.layer;
    if (frame.got.status()->ok()) {
      EXPECT_EQ(Bytes(frame.into), Bytes(Pattern(frame.bytes, frame.id.job)));
    }
  }
  for (const auto& [job, event] : finished_) EXPECT_TRUE(event.fired()) << "job " << job;
  EXPECT_EQ(edges_[0]->Health().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(network_->live_jobs(peers_[0], peers_[1]), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Interleaving, ::testing::Range(0, 300));

}  // namespace
}  // namespace runahead
