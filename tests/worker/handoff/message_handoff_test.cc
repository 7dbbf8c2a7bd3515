#include "worker/handoff/message_handoff.h"

#include "tests/worker/handoff/handoff_contract.h"
#include "tests/worker/link/message_engines.h"

namespace runahead {
namespace {

using ::runahead::testing::EveryTransport;
using ::runahead::testing::HandoffContract;
using ::runahead::testing::HandoffWorld;
using ::runahead::testing::kRowBytes;
using ::runahead::testing::NewEngine;
using ::runahead::testing::OverEveryTransport;
using ::runahead::testing::Pattern;
using ::runahead::testing::TransportName;

class MessageWorld final : public HandoffWorld {
 public:
  explicit MessageWorld(const std::string& transport, MemoryKind tier = MemoryKind::kHost)
      : HandoffWorld(tier), slices_(*store, {RowForm::kF32, [this] { ++corrupt; }, &receiving}) {
    decode_ = NewEngine(transport);
    receiver_ = std::make_unique<MessageHandoffReceiver>(*decode_, slices_);
    for (int i = 0; i < 3; ++i) {
      engines_[i] = NewEngine(transport);
      senders_[i] = std::make_unique<RetryingSender>(MakeMessageSliceTransport(*engines_[i]),
                                                     HandoffSenderOptions{[this] { ++retries; }, &sending});
    }
  }
  HandoffSender& sender(int process) override { return *senders_[process]; }
  PeerId decode() const override { return decode_->self(); }
  MessageEngine& engine(int process) { return *engines_[process]; }
  void StopDecode() {
    receiver_.reset();
    decode_.reset();
  }
  void StopSender(int process) { senders_[process].reset(); }

 private:
  SliceReceiver slices_;
  std::unique_ptr<MessageEngine> decode_, engines_[3];
  std::unique_ptr<MessageHandoffReceiver> receiver_;
  std::unique_ptr<RetryingSender> senders_[3];
};

INSTANTIATE_TEST_SUITE_P(Ucx, HandoffContract,
                         ::testing::Values([] { return std::unique_ptr<HandoffWorld>(new MessageWorld("ucx")); }));
INSTANTIATE_TEST_SUITE_P(Tcp, HandoffContract,
                         ::testing::Values([] { return std::unique_ptr<HandoffWorld>(new MessageWorld("tcp")); }));
INSTANTIATE_TEST_SUITE_P(TcpToDevice, HandoffContract, ::testing::Values([] {
                           return std::unique_ptr<HandoffWorld>(new MessageWorld("tcp", MemoryKind::kDevice));
                         }));

class MessageHandoff : public OverEveryTransport {
 protected:
  static absl::StatusCode Code(const Event& event) { return event.Wait(absl::Seconds(60)).code(); }
  Event Push(const LeaseId& lease, int32_t layer) {
    return world_.sender(0).Push(decode_, {lease, layer, 0, 300}, Pattern(300 * kRowBytes, 1), Event());
  }
  MessageWorld world_{GetParam()};
  const PeerId decode_ = world_.decode();
  const LeaseId lease_ = *world_.store->Reserve(300, 300);
};

TEST_P(MessageHandoff, ADecodeWorkerThatStopsMakesItUnavailable) {
  world_.receiving.HoldVerdicts();
  const Event pending = Push(lease_, 0);
  world_.receiving.AwaitHeld(1);
  world_.StopDecode();
  EXPECT_EQ(Code(pending), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(Push(lease_, 1)), absl::StatusCode::kUnavailable);
}

TEST_P(MessageHandoff, ACutConnectionFailsWhatIsUnderWayAndTheNextSliceConnectsAgain) {
  world_.receiving.HoldVerdicts();
  const Event pending = Push(lease_, 0);
  world_.receiving.AwaitHeld(1);
  world_.engine(0).Close(decode_.key());
  EXPECT_EQ(Code(pending), absl::StatusCode::kUnavailable);
  world_.receiving.ReleaseVerdicts();
  EXPECT_EQ(Code(Push(lease_, 0)), absl::StatusCode::kOk);
  EXPECT_EQ(Code(Push(lease_, 1)), absl::StatusCode::kOk);
  EXPECT_TRUE(world_.store->Complete(lease_).fired());
}

TEST_P(MessageHandoff, ASenderThatStopsEndsWhatItHasUnderWay) {
  world_.receiving.HoldVerdicts();
  const Event pending = Push(lease_, 0);
  EventSource never;
  const Event waiting = world_.sender(0).Push(decode_, {lease_, 1, 0, 300}, Pattern(300 * kRowBytes, 1), never.event());
  world_.receiving.AwaitHeld(1);
  world_.StopSender(0);
  EXPECT_EQ(Code(waiting), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(pending), absl::StatusCode::kUnavailable);
  world_.receiving.ReleaseVerdicts();
}

INSTANTIATE_TEST_SUITE_P(Engines, MessageHandoff, EveryTransport(), TransportName);

}  // namespace
}  // namespace runahead
