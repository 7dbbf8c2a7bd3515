#include "worker/handoff/message_handoff.h"

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tests/testing/await.h"
#include "tests/testing/patience.h"
#include "tests/worker/handoff/handoff_contract.h"
#include "tests/worker/link/new_engine.h"
#include "worker/link/running_sum.h"

namespace runahead {
namespace {

using ::runahead::testing::HandoffContract;
using ::runahead::testing::HandoffWorld;
using ::runahead::testing::kRowBytes;
using ::runahead::testing::NewEngine;
using ::runahead::testing::Pattern;

class MessageWorld final : public HandoffWorld {
 public:
  explicit MessageWorld(MemoryKind tier = MemoryKind::kHost)
      : HandoffWorld(tier), slices_(*store, {.on_corrupt = [this] { ++corrupt; }, .progress = progress}) {
    decode_ = testing::HoldingVerdicts(NewEngine(), receiving);
    receiver_ = std::make_unique<MessageHandoffReceiver>(*decode_, slices_);
    for (int i = 0; i < 3; ++i) {
      engines_[i] = NewEngine();
      senders_[i] =
          std::make_unique<SliceSender>(testing::WithFaults(MakeMessageSliceTransport(*engines_[i]), &sending),
                                        HandoffSenderOptions{.on_retry = [this] { ++retries; }});
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

  const std::shared_ptr<ProgressMeter> progress = std::make_shared<ProgressMeter>();

 private:
  SliceReceiver slices_;
  std::unique_ptr<MessageEngine> decode_, engines_[3];
  std::unique_ptr<MessageHandoffReceiver> receiver_;
  std::unique_ptr<SliceSender> senders_[3];
};

INSTANTIATE_TEST_SUITE_P(Tcp, HandoffContract,
                         ::testing::Values([] { return std::unique_ptr<HandoffWorld>(new MessageWorld); }));
INSTANTIATE_TEST_SUITE_P(TcpToDevice, HandoffContract, ::testing::Values([] {
                           return std::unique_ptr<HandoffWorld>(new MessageWorld(MemoryKind::kDevice));
                         }));

class MessageHandoff : public ::testing::Test {
 protected:
  static absl::StatusCode Code(const Event& event) { return event.Wait(testing::LongestWait()).code(); }
  Event Push(const LeaseId& lease, int32_t layer) {
    return world_.sender(0).Push(decode_, {lease, layer, 0, 300}, Pattern(300 * kRowBytes, 1), Event());
  }
  MessageWorld world_;
  const PeerId decode_ = world_.decode();
  const LeaseId lease_ = *world_.store->Reserve({.prompt_tokens = 300, .total_tokens = 300});
};

TEST_F(MessageHandoff, ADecodeWorkerThatStopsMakesItUnavailable) {
  world_.receiving.HoldVerdicts();
  const Event pending = Push(lease_, 0);
  world_.receiving.AwaitHeld(1);
  world_.StopDecode();
  EXPECT_EQ(Code(pending), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Code(Push(lease_, 1)), absl::StatusCode::kUnavailable);
}

TEST_F(MessageHandoff, ACutConnectionFailsWhatIsUnderWayAndTheNextSliceConnectsAgain) {
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

TEST_F(MessageHandoff, ASenderThatStopsEndsWhatItHasUnderWay) {
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

TEST_F(MessageHandoff, EachSliceIsAUnitOfTheThreadThatCoversWhatComes) {
  EXPECT_EQ(Code(Push(lease_, 0)), absl::StatusCode::kOk);
  ASSERT_TRUE(
      testing::Await("the thread is through with the slice", [&] { return !world_.progress->Read().computing; }));
  EXPECT_EQ(world_.progress->Read().done, 1u);
}

// What no sender of ours says.
class MalformedSlice : public MessageHandoff {
 protected:
  ~MalformedSlice() override { stranger_.reset(); }

  // What it is answered.
  Event Say(std::string header, Outbound bytes) {
    EventSource answered;
    stranger_->Send(decode_, MessageKind::kSlice, std::move(header), std::move(bytes),
                    [answered](const absl::Status& answer) { answered.Fire(answer); });
    return answered.event();
  }
  // A slice of our lease that fits it, but for what `damage` does to it.
  Event Ask(const std::function<void(SliceWire&, Outbound&)>& damage, const BufferRef& rows) {
    const Slice slice{lease_, 0, 0, 300};
    std::string packed = PackSlice(slice);
    SliceWire wire;
    std::memcpy(&wire, packed.data(), sizeof(wire));
    Outbound bytes(rows);
    bytes.seed = SeedOf(slice);
    damage(wire, bytes);
    std::memcpy(packed.data(), &wire, sizeof(wire));
    return Say(std::move(packed), std::move(bytes));
  }

  std::unique_ptr<MessageEngine> stranger_ = NewEngine();
};

TEST_F(MalformedSlice, IsRefusedOrDiscardedAndHarmsNothing) {
  const BufferRef rows = Pattern(300 * kRowBytes, 1), few = Pattern(10, 1);
  EXPECT_EQ(Code(Say("", ConstBufferRef())), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(Say("short", rows)), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(Say(std::string(sizeof(SliceWire) + 1, 'x'), rows)), absl::StatusCode::kCancelled);
  const auto as_it_is = [](SliceWire&, Outbound&) {};
  EXPECT_EQ(Code(Ask(as_it_is, few)), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Code(Ask(as_it_is, {})), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Code(Ask([](SliceWire& wire, Outbound&) { wire.end = 10; }, rows)), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Code(Ask([](SliceWire& wire, Outbound&) { wire.kind = 77; }, rows)), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Code(Ask([](SliceWire& wire, Outbound&) { wire.form = 77; }, rows)), absl::StatusCode::kFailedPrecondition);
  // Another slice's bytes, and another sum.
  EXPECT_EQ(Code(Ask([](SliceWire&, Outbound& bytes) { ++bytes.seed; }, rows)), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Code(Ask([](SliceWire&, Outbound& bytes) { bytes.sum = 5; }, rows)), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Code(Push(lease_, 0)), absl::StatusCode::kOk) << "no write was left under way";
  EXPECT_EQ(Code(Push(lease_, 1)), absl::StatusCode::kOk);
  EXPECT_TRUE(world_.store->Complete(lease_).fired());
}

TEST_F(MalformedSlice, TheSenderOfARefusedOneIsLetGo) {
  BufferRef rows = Pattern(300 * kRowBytes, 1);
  const std::weak_ptr<Buffer> held = rows.buffer;
  const Event refused = Ask([](SliceWire& wire, Outbound&) { wire.lease_number ^= 1; }, rows);
  rows = {};
  EXPECT_EQ(Code(refused), absl::StatusCode::kNotFound);
  EXPECT_TRUE(testing::Await("nobody keeps the rows", [&] { return held.expired(); }));
}

}  // namespace
}  // namespace runahead
