// Edges between real processes, and what their violent death does.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/new_engine.h"
#include "tests/worker/link/peer_process.h"
#include "worker/link/message/message_edge.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::FromArgument;
using ::runahead::testing::NewEngine;
using ::runahead::testing::Pattern;
using ::runahead::testing::PeerProcess;
using ::runahead::testing::Room;
using ::runahead::testing::ToArgument;

constexpr size_t kBig = size_t{128} << 20;

class MessageProcess : public ::testing::Test {
 protected:
  std::unique_ptr<PeerProcess> Peer(const std::string& mode, size_t bytes) {
    return std::make_unique<PeerProcess>(
        "worker_link_message_peer",
        std::vector<std::string>{mode, std::to_string(bytes), ToArgument(factory_->self())});
  }
  // A killed peer is noticed, within whatever time a busy machine takes for it.
  static absl::StatusCode Soon(const Event& event) { return event.Wait(absl::Seconds(10)).code(); }

  const std::unique_ptr<MessageEngine> engine_ = NewEngine();
  std::unique_ptr<MessageEdgeFactory> factory_ = std::make_unique<MessageEdgeFactory>(*engine_);
};

TEST_F(MessageProcess, FramesTravelAndARestartIsAnotherPeer) {
  auto peer = Peer("send", 1 << 20);
  const PeerId first = FromArgument(peer->ReadLine());
  const auto edge = *factory_->Open(first);
  BufferRef into = Room(1 << 20);
  ASSERT_TRUE(edge->Recv({1, 0, 0}, into).Wait(testing::LongestWait()).ok());
  EXPECT_EQ(Bytes(into), Bytes(Pattern(1 << 20, 1)));
  EXPECT_NE(engine_->Transport(first), "");
  const Event pending = edge->Recv({1, 1, 0}, Room(10));
  peer->Kill();
  EXPECT_EQ(Soon(pending), absl::StatusCode::kUnavailable);
  EXPECT_EQ(factory_->Open(first).status().code(), absl::StatusCode::kUnavailable);

  peer = Peer("send", 2 << 20);
  const PeerId second = FromArgument(peer->ReadLine());
  const auto again = *factory_->Open(second);
  into = Room(2 << 20);
  ASSERT_TRUE(again->Recv({1, 0, 0}, into).Wait(testing::LongestWait()).ok());
  EXPECT_EQ(factory_->Open(first).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(MessageProcess, AReceiverKilledInMidTransferFailsEverySendAndFreesTheBytes) {
  auto peer = Peer("receive", kBig);
  const auto edge = *factory_->Open(FromArgument(peer->ReadLine()));
  BufferRef bytes = Pattern(kBig, 1);
  const std::weak_ptr<Buffer> held = bytes.buffer;
  const Event moving = edge->Send({1, 0, 0}, bytes, Event());
  const Event waiting = edge->Send({1, 1, 0}, Pattern(100'000, 1), Event());
  const Event small = edge->Send({1, 2, 0}, Pattern(100, 1), Event());
  const Event finished = edge->Finish(1);
  const Event wanted = edge->Recv({2, 0, 0}, Room(10));
  bytes = {};
  ASSERT_EQ(peer->ReadLine(), "moving");
  peer->Kill();
  for (const Event& event : {moving, waiting, finished, wanted}) {
    EXPECT_EQ(Soon(event), absl::StatusCode::kUnavailable);
  }
  EXPECT_NE(Soon(small), absl::StatusCode::kDeadlineExceeded);  // eager: it may have left long before
  factory_->Close(FromArgument("1:00"));                        // nobody: returns at once
  EXPECT_EQ(edge->Health().code(), absl::StatusCode::kUnavailable);
  engine_->SetHandler(MessageKind::kSlice,
                      nullptr);  // a turn of the progress thread: the event's own reference is gone
  EXPECT_TRUE(held.expired());
}

TEST_F(MessageProcess, ASenderKilledInMidTransferFailsEveryReceive) {
  auto peer = Peer("send", kBig);
  const auto edge = *factory_->Open(FromArgument(peer->ReadLine()));
  const BufferRef into = Room(kBig);
  const Event got = edge->Recv({1, 0, 0}, into);
  const Event unmatched = edge->Recv({1, 1, 0}, Room(10));
  const volatile std::byte* first = into.data();
  while (*first == std::byte{0} && !got.fired()) {
  }
  peer->Kill();
  EXPECT_EQ(Soon(got), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Soon(unmatched), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Soon(edge->Finish(1)), absl::StatusCode::kUnavailable);
}

TEST_F(MessageProcess, OthersAreStillHeardWhenASenderIsKilledInMidMessage) {
  auto bystander = Peer("answer", 0);
  const PeerId other = FromArgument(bystander->ReadLine());
  for (int round = 0; round < 20; ++round) {
    EventSource sprayed, from_bystander;
    engine_->SetHandler(MessageKind::kEdgeControl, [&](const Message& message) {
      (message.from == other.key() ? from_bystander : sprayed).Fire(absl::OkStatus());
    });
    auto sprayer = Peer("spray", 0);
    sprayer->ReadLine();
    ASSERT_TRUE(sprayed.event().Wait(testing::LongestWait()).ok());
    sprayer->Kill();
    engine_->Send(other, MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    ASSERT_EQ(Soon(from_bystander.event()), absl::StatusCode::kOk) << "round " << round;
    engine_->SetHandler(MessageKind::kEdgeControl, nullptr);
  }
}

TEST_F(MessageProcess, AnEngineThatStoppedTakesNobody) {
  auto peer = Peer("stop", 0);
  EventSource refused;
  engine_->Connect(FromArgument(peer->ReadLine()), [refused](const absl::Status& why) { refused.Fire(why); });
  EXPECT_EQ(Soon(refused.event()), absl::StatusCode::kUnavailable);
}

TEST_F(MessageProcess, AnEngineMayEndWhileOthersConnect) {
  for (int round = 0; round < 6; ++round) {
    auto peer = Peer("end", 0);
    PeerId ending = FromArgument(peer->ReadLine());
    std::vector<EventSource> dead(4);
    for (EventSource& each : dead) {
      ++ending.generation;  // a connection of its own
      engine_->Connect(ending, [each](const absl::Status& why) { each.Fire(why); });
    }
    peer->WriteLine("end");
    for (const EventSource& each : dead) {
      EXPECT_EQ(each.event().Wait(testing::LongestWait()).code(), absl::StatusCode::kUnavailable);
    }
    EXPECT_EQ(peer->Await(), 0) << "round " << round;
  }
}

}  // namespace
}  // namespace runahead
