#include <array>
#include <atomic>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_peer_comm.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/edge_contract.h"
#include "tests/worker/link/new_engine.h"
#include "worker/link/message/message_edge.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::EdgeContract;
using ::runahead::testing::EdgeWorld;
using ::runahead::testing::FakePeerCommFactory;
using ::runahead::testing::FakePeerNetwork;
using ::runahead::testing::NewEngine;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

// Three processes in this one.
class DeviceWorld final : public EdgeWorld {
 public:
  DeviceWorld() {
    for (int i = 0; i < 3; ++i) Restart(i);
  }
  ~DeviceWorld() override {
    for (int i = 0; i < 3; ++i) Kill(i);
  }
  MessageEdgeFactory& factory(int process) override { return *factories_[process]; }
  void Kill(int process) override {
    factories_[process].reset();
    engines_[process].reset();
  }
  // A new life.
  void Restart(int process) {
    Kill(process);
    engines_[process] = NewEngine();
    comms_[process] = std::make_unique<FakePeerCommFactory>(network, absl::StrCat("process ", process),
                                                            absl::StrCat("nccl 2.27.7 GPU-", process, " host 1"));
    const FrameFaults faults{.on_corrupt = [this] { ++corrupt; }, .on_retry = [this] { ++again; }};
    factories_[process] = std::make_unique<MessageEdgeFactory>(
        *engines_[process], MessageEdgeOptions{.comms = comms_[process].get(), .faults = faults});
    ids_[process] = engines_[process]->self();
  }
  size_t live_jobs(int process, int peer) override { return factories_[process]->live_jobs(ids_[peer]); }
  MessageEngine& engine(int process) { return *engines_[process]; }

  FakePeerNetwork network;
  std::atomic<int> corrupt = 0, again = 0;  // frames that came damaged, and that were sent again for it

 private:
  std::array<std::unique_ptr<MessageEngine>, 3> engines_;
  std::array<std::unique_ptr<FakePeerCommFactory>, 3> comms_;
  std::array<std::unique_ptr<MessageEdgeFactory>, 3> factories_;
  std::array<PeerId, 3> ids_;
};

INSTANTIATE_TEST_SUITE_P(Device, EdgeContract,
                         ::testing::Values([] { return std::unique_ptr<EdgeWorld>(new DeviceWorld); }));

class DeviceEdge : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 10'000;

  std::shared_ptr<Edge> Open(int process, int peer) {
    auto edge = world_.factory(process).Open(world_.factory(peer).self());
    EXPECT_TRUE(edge.ok()) << edge.status();
    return *edge;
  }
  static absl::StatusCode Code(const Event& event) { return event.Wait(testing::LongestWait()).code(); }
  // All that is under way at both sides ends UNAVAILABLE, and so does what comes after.
  void ExpectBothDie(Edge& a, Edge& b, const std::vector<Event>& under_way) {
    for (const Event& event : under_way) EXPECT_EQ(Code(event), absl::StatusCode::kUnavailable);
    for (Edge* edge : {&a, &b}) {
      EXPECT_EQ(Code(edge->Recv({99, 0, 0}, Room(kBytes))), absl::StatusCode::kUnavailable);
      EXPECT_EQ(Code(edge->Finish(99)), absl::StatusCode::kUnavailable);
      EXPECT_EQ(edge->Health().code(), absl::StatusCode::kUnavailable);
    }
  }

  DeviceWorld world_;
  FakePeerNetwork& network_ = world_.network;
};

TEST_F(DeviceEdge, TwoCommunicatorsAPairAreMadeWhenBothSidesAreOpen) {
  const auto a = Open(0, 1);
  EXPECT_EQ(network_.opened(), 0u);
  const auto b = Open(1, 0);
  network_.AwaitOpened(4);  // before any frame
  for (int layer = 0; layer < 20; ++layer) {
    a->Send({1, layer, 0}, Pattern(kBytes, 1), Event());
    b->Send({1, layer, 1}, Pattern(kBytes, 2), Event());
    EXPECT_EQ(Code(b->Recv({1, layer, 0}, Room(kBytes))), absl::StatusCode::kOk);
    EXPECT_EQ(Code(a->Recv({1, layer, 1}, Room(kBytes))), absl::StatusCode::kOk);
  }
  EXPECT_EQ(network_.opened(), 4u);
  EXPECT_EQ(network_.transfers(), 40u);
}

TEST_F(DeviceEdge, FramesWaitForTheCommunicators) {
  network_.HoldReady();
  const auto a = Open(0, 1), b = Open(1, 0);
  const BufferRef into = Room(kBytes);
  const Event sent = a->Send({1, 0, 0}, Pattern(kBytes, 1), Event());
  const Reception got = b->Recv({1, 0, 0}, into);
  network_.AwaitUnderWay(2);
  EXPECT_FALSE(sent.fired());
  EXPECT_FALSE(got.fired());
  const absl::Time met = MonotonicNow();
  network_.Meet();
  EXPECT_EQ(Code(got), absl::StatusCode::kOk);
  EXPECT_GE(got.wire()->first, met) << "to wait for a communicator is not to be on the wire";
  EXPECT_EQ(Code(sent), absl::StatusCode::kOk);
  EXPECT_EQ(Bytes(into), Bytes(Pattern(kBytes, 1)));
}

TEST_F(DeviceEdge, FramesAreOnTheWireOneAfterTheOther) {
  network_.HoldTransfers();
  const auto a = Open(0, 1), b = Open(1, 0);
  a->Send({1, 0, 0}, Pattern(kBytes, 1), Event());
  a->Send({1, 1, 0}, Pattern(kBytes, 2), Event());
  const Reception first = b->Recv({1, 0, 0}, Room(kBytes)), second = b->Recv({1, 1, 0}, Room(kBytes));
  network_.AwaitUnderWay(4);
  network_.Release();
  EXPECT_EQ(Code(first), absl::StatusCode::kOk);
  EXPECT_EQ(Code(second), absl::StatusCode::kOk);
  EXPECT_LE(first.wire()->first, first.wire()->last);
  EXPECT_GE(second.wire()->first, first.wire()->last) << "the second waits for its turn on the communicator";
}

TEST_F(DeviceEdge, AFrameThatIsNotWantedMovesNothing) {
  const auto a = Open(0, 1), b = Open(1, 0);
  const Event first = a->Send({1, 0, 0}, Pattern(kBytes, 1), Event());
  const Event second = a->Send({1, 1, 0}, Pattern(kBytes, 1), Event());
  b->Drop(1);
  EXPECT_NE(Code(first), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(Code(second), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Code(a->Finish(1)), absl::StatusCode::kCancelled);
  a->Send({2, 0, 0}, Pattern(kBytes, 3), Event());
  EXPECT_EQ(Code(b->Recv({2, 0, 0}, Room(kBytes))), absl::StatusCode::kOk);
  EXPECT_EQ(network_.transfers(), 1u);
}

TEST_F(DeviceEdge, AFrameInTransferIsSentWholeThoughItsJobIsDropped) {
  network_.HoldTransfers();
  const auto a = Open(0, 1), b = Open(1, 0);
  const BufferRef into = Room(kBytes);
  const Event sent = a->Send({1, 0, 0}, Pattern(kBytes, 1), Event());
  const Event waiting = a->Send({1, 1, 0}, Pattern(kBytes, 2), Event());
  const Event got = b->Recv({1, 0, 0}, into);
  network_.AwaitUnderWay(2);
  b->Drop(1);
  a->Drop(1);
  EXPECT_EQ(Code(waiting), absl::StatusCode::kCancelled);
  EXPECT_FALSE(sent.fired()) << "its bytes are being read";
  EXPECT_FALSE(got.fired()) << "its buffer is being written";
  network_.Release();
  EXPECT_EQ(Code(sent), absl::StatusCode::kOk);
  EXPECT_EQ(Code(got), absl::StatusCode::kOk);
  EXPECT_EQ(Code(a->Finish(1)), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(b->Finish(1)), absl::StatusCode::kCancelled);
  EXPECT_EQ(world_.live_jobs(0, 1), 0u);
  EXPECT_EQ(world_.live_jobs(1, 0), 0u);
}

TEST_F(DeviceEdge, AFrameThatCameDamagedIsSentAgain) {
  const auto a = Open(0, 1), b = Open(1, 0);
  for (int flips = 1; flips < kTransferAttempts; ++flips) {
    const JobId job = flips;
    network_.Flip(flips);
    const BufferRef into = Room(kBytes);
    const Event sent = a->Send({job, 0, 0}, Pattern(kBytes, job), Event());
    const Reception got = b->Recv({job, 0, 0}, into);
    EXPECT_EQ(Code(got), absl::StatusCode::kOk);
    EXPECT_EQ(Code(sent), absl::StatusCode::kOk);
    EXPECT_EQ(Bytes(into), Bytes(Pattern(kBytes, job)));
    EXPECT_EQ(got.sum()->kind, FrameSum::Kind::kDevice);
    EXPECT_EQ(Code(a->Finish(job)), absl::StatusCode::kOk);
  }
  EXPECT_EQ(world_.corrupt, 3);
  EXPECT_EQ(world_.again, 3);
}

TEST_F(DeviceEdge, AFrameThatComesDamagedEveryTimeEndsItsJobAndNotTheEdge) {
  const auto a = Open(0, 1), b = Open(1, 0);
  network_.Flip(kTransferAttempts);
  const Event lost = a->Send({1, 0, 0}, Pattern(kBytes, 1), Event()),
              sent = a->Send({1, 1, 0}, Pattern(kBytes, 2), Event());
  EXPECT_EQ(Code(b->Recv({1, 0, 0}, Room(kBytes))), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Code(b->Recv({1, 1, 0}, Room(kBytes))), absl::StatusCode::kOk);
  EXPECT_EQ(Code(lost), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Code(sent), absl::StatusCode::kOk);
  EXPECT_EQ(Code(a->Finish(1)), absl::StatusCode::kDataLoss);
  a->Send({2, 0, 0}, Pattern(kBytes, 3), Event());
  EXPECT_EQ(Code(b->Recv({2, 0, 0}, Room(kBytes))), absl::StatusCode::kOk);
  EXPECT_TRUE(a->Health().ok());
  EXPECT_TRUE(b->Health().ok());
}

// What flips in the memory of who passes it on, too: the sum is the origin's.
TEST_F(DeviceEdge, TheOriginsSumTravelsOn) {
  const auto a = Open(0, 1), b = Open(1, 0), onward = Open(1, 2), c = Open(2, 1);
  const BufferRef into = Room(kBytes), end = Room(kBytes);
  const Reception middle = b->Recv({1, 0, 1}, into), other = b->Recv({2, 0, 1}, Room(kBytes));
  const Event passed = onward->SendSummed({1, 0, 1}, into, middle, middle.sum());
  const Event spoilt = onward->SendSummed({2, 0, 1}, Pattern(kBytes, 7), other, other.sum());
  a->Send({1, 0, 1}, Pattern(kBytes, 1), Event());
  a->Send({2, 0, 1}, Pattern(kBytes, 2), Event());
  EXPECT_EQ(Code(c->Recv({1, 0, 1}, end)), absl::StatusCode::kOk);
  EXPECT_EQ(Bytes(end), Bytes(Pattern(kBytes, 1)));
  EXPECT_EQ(Code(passed), absl::StatusCode::kOk);
  EXPECT_EQ(Code(c->Recv({2, 0, 1}, Room(kBytes))), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Code(spoilt), absl::StatusCode::kDataLoss);
}

TEST_F(DeviceEdge, CommunicatorsThatAreNotReadyInTimeEndTheEdgeAtBothSides) {
  network_.HoldReady();
  const auto a = Open(0, 1), b = Open(1, 0);
  EventSource never;
  const std::vector<Event> under_way = {
      a->Send({1, 0, 0}, Pattern(kBytes, 1), Event()), b->Recv({1, 0, 0}, Room(kBytes)),
      a->Send({1, 1, 0}, Pattern(kBytes, 1), never.event()), b->Recv({1, 1, 0}, Room(kBytes)), a->Finish(1)};
  network_.AwaitUnderWay(2);
  network_.ExpireReady();
  ExpectBothDie(*a, *b, under_way);
}

TEST_F(DeviceEdge, AnErrorOfOneSideEndsTheEdgeAtBothAndNoOther) {
  for (const PeerRank rank : {PeerRank::kSender, PeerRank::kReceiver}) {
    for (int process = 0; process < 2; ++process) {
      world_.Restart(0);
      world_.Restart(1);
      const auto a = Open(0, 1), b = Open(1, 0), to_c = Open(0, 2), c = Open(2, 0);
      c->Send({1, 0, 0}, Pattern(kBytes, 1), Event());
      EXPECT_EQ(Code(to_c->Recv({1, 0, 0}, Room(kBytes))), absl::StatusCode::kOk);
      network_.HoldTransfers();
      const std::vector<Event> under_way = {
          a->Send({1, 0, 0}, Pattern(kBytes, 1), Event()), b->Recv({1, 0, 0}, Room(kBytes)),
          b->Send({1, 0, 1}, Pattern(kBytes, 1), Event()), a->Recv({1, 0, 1}, Room(kBytes)), a->Finish(1)};
      network_.AwaitUnderWay(4);
      network_.FailAsync(absl::StrCat("process ", process), rank);
      network_.Release();
      a->Finish(7).Wait(testing::LongestWait()).IgnoreError();
      EXPECT_EQ(Code(b->Recv({3, 0, 0}, Room(kBytes))), absl::StatusCode::kUnavailable);
      EXPECT_EQ(Code(a->Recv({3, 0, 0}, Room(kBytes))), absl::StatusCode::kUnavailable);
      for (const Event& event : under_way) EXPECT_NE(Code(event), absl::StatusCode::kDeadlineExceeded);
      // The same error at an edge that has only this much in common with them: the process.
      if (process != 0) {
        c->Send({2, 0, 0}, Pattern(kBytes, 1), Event());
        EXPECT_EQ(Code(to_c->Recv({2, 0, 0}, Room(kBytes))), absl::StatusCode::kOk);
      }
    }
  }
}

TEST_F(DeviceEdge, AnErrorOfAnIdleCommunicatorIsSeenByHealth) {
  for (const PeerRank rank : {PeerRank::kSender, PeerRank::kReceiver}) {
    for (int process = 0; process < 2; ++process) {
      world_.Restart(0);
      world_.Restart(1);
      const auto a = Open(0, 1), b = Open(1, 0);
      a->Send({1, 0, 0}, Pattern(kBytes, 1), Event());
      ASSERT_EQ(Code(b->Recv({1, 0, 0}, Room(kBytes))), absl::StatusCode::kOk);
      const Event a_waits = a->Recv({1, 1, 1}, Room(kBytes)), b_waits = b->Recv({1, 1, 0}, Room(kBytes));
      network_.FailAsync(absl::StrCat("process ", process), rank);
      EXPECT_EQ((process == 0 ? a : b)->Health().code(), absl::StatusCode::kUnavailable);
      EXPECT_EQ(Code(a_waits), absl::StatusCode::kUnavailable);
      EXPECT_EQ(Code(b_waits), absl::StatusCode::kUnavailable);
    }
  }
}

TEST_F(DeviceEdge, WithoutIdsOrCommunicatorsTheEdgeIsDeadAtBothSides) {
  for (const bool ids : {true, false}) {
    world_.Restart(0);
    world_.Restart(1);
    network_.RefuseIds(ids);
    network_.RefuseOpen(!ids);
    const auto a = Open(0, 1), b = Open(1, 0);
    ExpectBothDie(*a, *b, {a->Recv({1, 0, 0}, Room(kBytes)), b->Recv({1, 0, 0}, Room(kBytes))});
  }
}

TEST_F(DeviceEdge, ARestartedPeerIsAnotherWithCommunicatorsOfItsOwn) {
  const auto a = Open(0, 1), c = Open(2, 0), to_c = Open(0, 2);
  auto b = Open(1, 0);
  for (uint64_t life = 1; life <= 3; ++life) {
    const auto to_b = Open(0, 1);
    to_b->Send({life, 0, 0}, Pattern(kBytes, life), Event());
    const BufferRef into = Room(kBytes);
    EXPECT_EQ(Code(b->Recv({life, 0, 0}, into)), absl::StatusCode::kOk);
    EXPECT_EQ(Bytes(into), Bytes(Pattern(kBytes, life)));
    network_.HoldTransfers();
    const Event stuck = to_b->Send({life, 1, 0}, Pattern(kBytes, life), Event());
    const Event never = b->Recv({life, 1, 0}, Room(kBytes));
    network_.AwaitUnderWay(2);
    world_.Restart(1);
    EXPECT_EQ(Code(stuck), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Code(never), absl::StatusCode::kUnavailable);
    network_.Release();
    b = Open(1, 0);
  }
  c->Send({1, 0, 0}, Pattern(kBytes, 1), Event());
  EXPECT_EQ(Code(to_c->Recv({1, 0, 0}, Room(kBytes))), absl::StatusCode::kOk) << "the other edge lived on";
}

TEST_F(DeviceEdge, CloseEndsItsCommunicatorsBeforeItReturns) {
  const auto a = Open(0, 1), b = Open(1, 0);
  network_.HoldTransfers();
  const Event sent = a->Send({1, 0, 0}, Pattern(kBytes, 1), Event());
  const Event got = b->Recv({1, 0, 0}, Room(kBytes));
  network_.AwaitUnderWay(2);
  world_.factory(0).Close(world_.factory(1).self());
  EXPECT_TRUE(sent.fired());
  world_.factory(1).Close(world_.factory(0).self());
  EXPECT_TRUE(got.fired());
  EXPECT_EQ(network_.open(), 0u);
}

TEST_F(DeviceEdge, NothingIsKeptOfAnEdgeThatWasClosed) {
  auto a = Open(0, 1);
  const auto b = Open(1, 0);
  world_.factory(0).Close(world_.factory(1).self());
  EXPECT_EQ(world_.factory(0).Open(world_.factory(1).self()).status().code(), absl::StatusCode::kUnavailable);
  const std::weak_ptr<Edge> kept = a;
  a.reset();
  EXPECT_TRUE(testing::Await("nothing keeps the edge", [&] { return kept.expired(); }));
}

// What computes there waits for all of them, and to end any communicator is to wait for that.
TEST_F(DeviceEdge, PeersThatDieWithFramesInTransferBothWaysLeaveNobodyWaiting) {
  const auto a = Open(0, 1), b = Open(1, 0), to_c = Open(0, 2), c = Open(2, 0);
  network_.HoldTransfers();
  const std::vector<Event> under_way = {a->Send({1, 0, 0}, Pattern(kBytes, 1), Event()),
                                        a->Recv({1, 0, 1}, Room(kBytes)),
                                        to_c->Send({1, 0, 0}, Pattern(kBytes, 1), Event()),
                                        to_c->Recv({1, 0, 1}, Room(kBytes)),
                                        a->Recv({1, 1, 1}, Room(kBytes)),
                                        to_c->Recv({1, 1, 1}, Room(kBytes))};
  b->Recv({1, 0, 0}, Room(kBytes));
  b->Send({1, 0, 1}, Pattern(kBytes, 1), Event());
  c->Recv({1, 0, 0}, Room(kBytes));
  c->Send({1, 0, 1}, Pattern(kBytes, 1), Event());
  network_.AwaitUnderWay(8);
  for (const Event& event : under_way) network_.AddStreamThatWaits("process 0", event);
  world_.Kill(1);
  world_.Kill(2);
  for (const Event& event : under_way) EXPECT_EQ(Code(event), absl::StatusCode::kUnavailable);
  world_.Kill(0);
  EXPECT_EQ(network_.open(), 0u);
}

TEST_F(DeviceEdge, NonsenseFromAPeerEndsTheEdgeAtMost) {
  std::mt19937 random(7);
  const std::string ids(256, 'x');
  for (int round = 0; round < 60; ++round) {
    world_.Restart(1);
    const auto a = Open(0, 1);
    const PeerId to = world_.factory(0).self();
    a->Recv({1, 0, 0}, Room(kBytes));
    a->Send({1, 0, 0}, Pattern(kBytes, 1), Event());
    for (int i = 0; i < 20; ++i) {
      const MessageKind kinds[] = {MessageKind::kDeviceEdge, MessageKind::kEdgeControl, MessageKind::kEdgeFrame};
      const MessageKind kind = kinds[random() % 3];
      std::string header(16, '\0');
      for (size_t at = 0; at < header.size(); at += 4) header[at] = static_cast<char>(random() % 5);
      // Ids of the right size name communicators that nobody else opens.
      if (kind == MessageKind::kDeviceEdge) header = random() % 4 == 0 ? ids : std::string(random() % 300, 'y');
      if (header.size() == ids.size()) {
        header[5] = static_cast<char>('a' + round % 26);
        header[6] = static_cast<char>('a' + round / 26);
      }
      if (random() % 10 == 0) header.resize(random() % (header.size() + 1));
      const BufferRef bytes = kind == MessageKind::kEdgeFrame && random() % 2 == 0 ? Pattern(kBytes, 2) : BufferRef();
      world_.engine(1).Send(to, kind, header, bytes, [](const absl::Status&) {});
    }
    world_.Kill(1);
    EXPECT_EQ(Code(a->Recv({9, 0, 0}, Room(kBytes))), absl::StatusCode::kUnavailable);
    world_.Restart(1);
  }
}

TEST_F(DeviceEdge, ManyJobsWithDropsInAnyOrderLeaveNothing) {
  std::mt19937 random(11);
  const auto a = Open(0, 1), b = Open(1, 0);
  constexpr JobId kJobs = 60;
  constexpr int kLayers = 4;
  std::vector<Event> all;
  std::vector<std::function<void()>> steps;
  for (JobId job = 1; job <= kJobs; ++job) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const size_t bytes = random() % 5 == 0 ? 0 : 100 + random() % 5000;
      steps.push_back([&, job, layer, bytes] {
        all.push_back(a->Send({job, layer, 0}, Pattern(bytes, job), Event()));
      });
      steps.push_back([&, job, layer, bytes] { all.push_back(b->Recv({job, layer, 0}, Room(bytes))); });
      steps.push_back([&, job, layer, bytes] {
        all.push_back(b->Send({job, layer, 1}, Pattern(bytes, job), Event()));
      });
      steps.push_back([&, job, layer, bytes] { all.push_back(a->Recv({job, layer, 1}, Room(bytes))); });
    }
    if (job % 3 == 0) steps.push_back([&, job] { a->Drop(job); });
    if (job % 4 == 0) steps.push_back([&, job] { b->Drop(job); });
  }
  std::shuffle(steps.begin(), steps.end(), random);
  for (const auto& step : steps) step();
  for (JobId job = 1; job <= kJobs; ++job) {
    all.push_back(a->Finish(job));
    all.push_back(b->Finish(job));
  }
  for (const Event& event : all) {
    const absl::StatusCode code = Code(event);
    EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kCancelled) << *event.status();
  }
  EXPECT_EQ(world_.live_jobs(0, 1), 0u);
  EXPECT_EQ(world_.live_jobs(1, 0), 0u);
  EXPECT_EQ(network_.under_way(), 0u);
  EXPECT_TRUE(a->Health().ok());
}

}  // namespace
}  // namespace runahead
