// Edges between real processes, and what their violent death does.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/peer_process.h"
#include "tests/worker/link/ucx_test_main.h"
#include "worker/link/ucx_edge.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::FromArgument;
using ::runahead::testing::Pattern;
using ::runahead::testing::PeerProcess;
using ::runahead::testing::Room;
using ::runahead::testing::ToArgument;

constexpr size_t kBig = size_t{128} << 20;

class UcxProcess : public ::testing::TestWithParam<std::string> {
 protected:
  UcxProcess() {
    auto engine = UcxEngine::Start({RandomBits64(), GetParam()});
    RUNAHEAD_CHECK(engine.ok());
    engine_ = *std::move(engine);
    factory_ = std::make_unique<UcxEdgeFactory>(*engine_);
  }
  std::unique_ptr<PeerProcess> Peer(const std::string& mode, size_t bytes) {
    return std::make_unique<PeerProcess>(
        "worker_link_ucx_peer",
        std::vector<std::string>{GetParam(), mode, std::to_string(bytes), ToArgument(factory_->self())});
  }
  // The contract's bound on noticing a killed peer.
  static absl::StatusCode Soon(const Event& event) { return event.Wait(absl::Seconds(1)).code(); }

  std::unique_ptr<UcxEngine> engine_;
  std::unique_ptr<UcxEdgeFactory> factory_;
};

TEST_P(UcxProcess, FramesTravelAndARestartIsAnotherPeer) {
  auto peer = Peer("send", 1 << 20);
  const PeerId first = FromArgument(peer->ReadLine());
  const auto edge = *factory_->Open(first);
  BufferRef into = Room(1 << 20);
  ASSERT_TRUE(edge->Recv({1, 0, 0}, into).Wait(absl::Seconds(60)).ok());
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
  ASSERT_TRUE(again->Recv({1, 0, 0}, into).Wait(absl::Seconds(60)).ok());
  EXPECT_EQ(factory_->Open(first).status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(UcxProcess, AReceiverKilledInMidTransferFailsEverySendAndFreesTheBytes) {
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
  engine_->SetHandler(UcxKind::kSlice, nullptr);  // a turn of the progress thread: the event's own reference is gone
  EXPECT_TRUE(held.expired());
}

TEST_P(UcxProcess, ASenderKilledInMidTransferFailsEveryReceive) {
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

TEST_P(UcxProcess, OthersAreStillHeardWhenASenderIsKilledInMidMessage) {
  auto bystander = UcxEngine::Start({RandomBits64(), GetParam()});
  ASSERT_TRUE(bystander.ok());
  for (int round = 0; round < 20; ++round) {
    EventSource sprayed, from_bystander;
    engine_->SetHandler(UcxKind::kVerdict, [&](const UcxMessage& message) {
      (message.from == (*bystander)->self().incarnation ? from_bystander : sprayed).Fire(absl::OkStatus());
    });
    auto sprayer = Peer("spray", 0);
    sprayer->ReadLine();
    ASSERT_TRUE(sprayed.event().Wait(absl::Seconds(60)).ok());
    sprayer->Kill();
    (*bystander)->Send(engine_->self(), UcxKind::kVerdict, "", ConstBufferRef(), [](const absl::Status&) {});
    ASSERT_EQ(Soon(from_bystander.event()), absl::StatusCode::kOk) << "round " << round;
    engine_->SetHandler(UcxKind::kVerdict, nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, UcxProcess, ::testing::Values("", "tcp"),
                         [](const auto& info) { return info.param.empty() ? std::string("best") : info.param; });

}  // namespace
}  // namespace runahead
