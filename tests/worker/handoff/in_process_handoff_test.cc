#include "worker/handoff/in_process_handoff.h"

#include <memory>

#include "tests/worker/handoff/handoff_contract.h"

namespace runahead {
namespace {

using ::runahead::testing::HandoffContract;
using ::runahead::testing::HandoffWorld;
using ::runahead::testing::kRowBytes;

class InProcessWorld final : public HandoffWorld {
 public:
  InProcessWorld() : receiver_(*store, {DType::kF32, [this] { ++corrupt; }, &receiving}) {
    for (auto& sender : senders_) {
      sender = std::make_unique<RetryingSender>(MakeInProcessTransport(receiver_),
                                                HandoffSenderOptions{[this] { ++retries; }, &sending});
    }
  }
  HandoffSender& sender(int process) override { return *senders_[process]; }
  PeerId decode() const override { return {"here", 77}; }

 private:
  SliceReceiver receiver_;
  std::unique_ptr<RetryingSender> senders_[3];
};

INSTANTIATE_TEST_SUITE_P(InProcess, HandoffContract,
                         ::testing::Values([] { return std::unique_ptr<HandoffWorld>(new InProcessWorld); }));

// What no transport can time: what comes between the check and the last byte.
class SliceReceiverTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 300;
  SliceReceiverTest() {
    header_.slice = {lease_, 0, 0, kTokens};
    header_.bytes = kTokens * kRowBytes;
  }
  SliceReceiver::Write Begin() {
    SliceReceiver::Write write;
    receiver_.Begin(
        header_, [&write](const SliceReceiver::Outcome& outcome) { write = std::get<SliceReceiver::Write>(outcome); });
    RUNAHEAD_CHECK(write != nullptr);
    header_.xxh64 = HashPieces(write->destination());
    return write;
  }
  InProcessWorld world_;
  SliceReceiver receiver_{*world_.store, {}};
  LeaseId lease_ = *world_.store->Reserve(kTokens, kTokens);
  SliceHeader header_;
};

TEST_F(SliceReceiverTest, ATransferThatTakesLongerThanTheLeaseLivesIsAccepted) {
  auto write = Begin();
  world_.clock.Advance(kLeaseLife + absl::Seconds(1));
  EXPECT_EQ(world_.store->ReapExpired(), 0);
  EXPECT_EQ(receiver_.Finish(header_, write), SliceVerdict::kAccepted);
}

TEST_F(SliceReceiverTest, ATransferThatWasGivenUpHoldsNothing) {
  receiver_.Abandon(Begin());
  world_.clock.Advance(kLeaseLife + absl::Seconds(1));
  EXPECT_EQ(world_.store->ReapExpired(), 1);
  EXPECT_EQ(world_.store->stats().used_bytes, 0);
}

TEST_F(SliceReceiverTest, ALeaseThatIsReleasedInMidTransferIsNoLease) {
  auto write = Begin();
  world_.store->Release(lease_);
  EXPECT_GT(world_.store->stats().used_bytes, 0) << "the write pins it";
  EXPECT_EQ(receiver_.Finish(header_, write), SliceVerdict::kNoLease);
  EXPECT_EQ(world_.store->stats().used_bytes, 0);
}

TEST_F(SliceReceiverTest, AnOverlapWaitsForTheWriteUnderWay) {
  const auto first = Begin();
  SliceReceiver::Write second;
  bool third_is_in = false;
  receiver_.Begin(header_,
                  [&](const SliceReceiver::Outcome& outcome) { second = std::get<SliceReceiver::Write>(outcome); });
  receiver_.Begin(header_, [&](const SliceReceiver::Outcome& outcome) {
    third_is_in = std::get<SliceVerdict>(outcome) == SliceVerdict::kAccepted;
  });
  EXPECT_EQ(second, nullptr);
  SliceHeader damaged = header_;
  damaged.xxh64 ^= 1;
  EXPECT_EQ(receiver_.Finish(damaged, first), SliceVerdict::kCorrupt);
  ASSERT_NE(second, nullptr) << "the one under way came to nothing, so the next is wanted";
  EXPECT_FALSE(third_is_in);
  EXPECT_EQ(receiver_.Finish(header_, second), SliceVerdict::kAccepted);
  EXPECT_TRUE(third_is_in) << "without its bytes";
}

TEST_F(SliceReceiverTest, AnAbandonedWriteLetsTheNextOneIn) {
  const auto first = Begin();
  SliceReceiver::Write second;
  receiver_.Begin(header_,
                  [&](const SliceReceiver::Outcome& outcome) { second = std::get<SliceReceiver::Write>(outcome); });
  receiver_.Abandon(first);
  ASSERT_NE(second, nullptr);
  receiver_.Abandon(second);
  world_.store->Release(lease_);
  EXPECT_EQ(world_.store->stats().used_bytes, 0);
}

}  // namespace
}  // namespace runahead
