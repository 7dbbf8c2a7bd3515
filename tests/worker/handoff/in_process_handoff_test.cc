#include "worker/handoff/in_process_handoff.h"

#include <memory>
#include <thread>

#include "tests/testing/patience.h"
#include "tests/worker/handoff/handoff_contract.h"

namespace runahead {
namespace {

using ::runahead::testing::HandoffContract;
using ::runahead::testing::HandoffWorld;
using ::runahead::testing::kRowBytes;
using ::runahead::testing::Pattern;

class InProcessWorld final : public HandoffWorld {
 public:
  explicit InProcessWorld(MemoryKind tier = MemoryKind::kHost)
      : HandoffWorld(tier), receiver_(*store, {.on_corrupt = [this] { ++corrupt; }}) {
    for (auto& sender : senders_) {
      sender =
          std::make_unique<SliceSender>(testing::WithFaults(MakeInProcessTransport(receiver_), &sending, &receiving),
                                        HandoffSenderOptions{.on_retry = [this] { ++retries; }});
    }
  }
  HandoffSender& sender(int process) override { return *senders_[process]; }
  PeerId decode() const override { return {"here", 77}; }
  void StopSender(int process) { senders_[process].reset(); }

 private:
  SliceReceiver receiver_;
  std::unique_ptr<SliceSender> senders_[3];
};

INSTANTIATE_TEST_SUITE_P(InProcess, HandoffContract,
                         ::testing::Values([] { return std::unique_ptr<HandoffWorld>(new InProcessWorld); }));
INSTANTIATE_TEST_SUITE_P(InProcessToDevice, HandoffContract, ::testing::Values([] {
                           return std::unique_ptr<HandoffWorld>(new InProcessWorld(MemoryKind::kDevice));
                         }));

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
    header_.sum = SumPieces(SeedOf(header_.slice), write->destination());
    return write;
  }
  SliceVerdict Finish(const SliceHeader& header, const SliceReceiver::Write& write) {
    SliceVerdict verdict{};
    receiver_.Finish(header, write, [&verdict](SliceVerdict v) { verdict = v; });
    return verdict;
  }
  InProcessWorld world_;
  std::vector<SliceVerdict> verdicts_;
  SliceReceiver receiver_{
      *world_.store, {.on_corrupt = {}, .on_verdict = [this](SliceVerdict verdict) { verdicts_.push_back(verdict); }}};
  LeaseId lease_ = *world_.store->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens});
  SliceHeader header_;
};

TEST_F(SliceReceiverTest, ATransferThatTakesLongerThanTheLeaseLivesIsAccepted) {
  auto write = Begin();
  world_.clock.Advance(kLeaseLife + absl::Seconds(1));
  EXPECT_EQ(world_.store->ReapExpired(), 0);
  EXPECT_EQ(Finish(header_, write), SliceVerdict::kAccepted);
}

TEST_F(SliceReceiverTest, EveryAnswerIsTold) {
  const auto refused = [this](const SliceHeader& header) {
    receiver_.Begin(header, [](const SliceReceiver::Outcome& outcome) {
      EXPECT_TRUE(std::holds_alternative<SliceVerdict>(outcome));
    });
  };
  SliceHeader header = header_;
  header.bytes = 1;
  refused(header);
  header = header_;
  header.slice.lease.number ^= 1;
  refused(header);
  SliceReceiver::Write write = Begin();
  header = header_;
  header.sum ^= 1;
  Finish(header, write);
  write = Begin();
  Finish(header_, write);
  refused(header_);  // it is there already
  EXPECT_THAT(verdicts_, ::testing::ElementsAre(SliceVerdict::kBadRange, SliceVerdict::kNoLease, SliceVerdict::kCorrupt,
                                                SliceVerdict::kAccepted, SliceVerdict::kAccepted));
}

// It would be another layer's KV, or another prompt's, and its bytes match.
TEST_F(SliceReceiverTest, ASliceWhoseHeaderIsNotWhatWasSentIsNeverAccepted) {
  RUNAHEAD_CHECK(Begin() != nullptr);
  const SliceHeader sent = header_;
  const auto expect_refused = [&](const SliceHeader& damaged) {
    receiver_.Begin(damaged, [&](const SliceReceiver::Outcome& outcome) {
      const auto* const verdict = std::get_if<SliceVerdict>(&outcome);
      EXPECT_NE(verdict != nullptr ? *verdict : Finish(damaged, std::get<SliceReceiver::Write>(outcome)),
                SliceVerdict::kAccepted)
          << Describe(damaged.slice);
    });
  };
  for (int bit = 0; bit < 64; ++bit) {
    SliceHeader damaged = sent;
    damaged.slice.lease.number ^= uint64_t{1} << bit;
    expect_refused(damaged);
    damaged = sent;
    damaged.slice.begin ^= int64_t{1} << bit;
    expect_refused(damaged);
    damaged.slice.end ^= int64_t{1} << bit;  // as many rows, elsewhere
    expect_refused(damaged);
    if (bit >= 32) continue;
    damaged = sent;
    damaged.slice.layer ^= static_cast<int32_t>(uint32_t{1} << bit);
    expect_refused(damaged);
  }
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
  EXPECT_EQ(Finish(header_, write), SliceVerdict::kNoLease);
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
  damaged.sum ^= 1;
  EXPECT_EQ(Finish(damaged, first), SliceVerdict::kCorrupt);
  ASSERT_NE(second, nullptr) << "the one under way came to nothing, so the next is wanted";
  EXPECT_FALSE(third_is_in);
  EXPECT_EQ(Finish(header_, second), SliceVerdict::kAccepted);
  EXPECT_TRUE(third_is_in) << "without its bytes";
}

TEST_F(SliceReceiverTest, EachSliceIsAUnitOfTheThreadThatCopies) {
  const auto copies = std::make_shared<ProgressMeter>();
  {
    SliceSender sender(MakeInProcessTransport(receiver_, copies), {});
    const Event accepted = sender.Push({}, header_.slice, Pattern(kTokens * kRowBytes, 1), Event());
    EXPECT_EQ(accepted.Wait(testing::LongestWait()), absl::OkStatus());
  }
  EXPECT_EQ(copies->Read().done, 1u);
  EXPECT_FALSE(copies->Read().computing);
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

// Slices into device memory that the host cannot write.
class DeviceArrivalTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 8 * kKvBlockTokens;  // a slice of so many takes all of the bounce buffer
  static absl::Status Await(const Event& event) { return event.Wait(testing::LongestWait()); }
  Event Push(int process, int32_t layer) {
    return world_.sender(process).Push(world_.decode(), {lease_, layer, 0, kTokens},
                                       Pattern(kTokens * kRowBytes, layer + 1), Event());
  }
  InProcessWorld world_{MemoryKind::kDevice};
  const LeaseId lease_ = *world_.store->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens});
};

TEST_F(DeviceArrivalTest, ASliceIsAcknowledgedWhenItsCopyHasRun) {
  EventSource gate;
  world_.device.HoldCopies(gate.event());
  const Event pushed = Push(0, 0);
  world_.device.AwaitCopyEnqueued();
  EXPECT_FALSE(pushed.fired());
  gate.Fire(absl::OkStatus());
  EXPECT_EQ(Await(pushed), absl::OkStatus());
}

TEST_F(DeviceArrivalTest, ACopyThatFailsIsLikeBytesThatWereLost) {
  world_.device.RefuseCopies(1);
  EXPECT_EQ(Await(Push(0, 0)), absl::OkStatus());
  EXPECT_EQ(world_.retries, 1);
  world_.device.FailEvents(3);
  EXPECT_EQ(Await(Push(0, 1)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(world_.retries, 3);
  EXPECT_EQ(world_.corrupt, 0) << "all sums were right";
  EXPECT_EQ(Await(Push(0, 1)), absl::OkStatus());
  EXPECT_TRUE(world_.store->Complete(lease_).fired());
}

TEST_F(DeviceArrivalTest, ALeaseThatEndsWhileItsSliceIsCopiedIsNoLease) {
  EventSource gate;
  world_.device.HoldCopies(gate.event());
  const Event pushed = Push(0, 0), waiting = Push(1, 1);
  world_.device.AwaitCopyEnqueued();
  world_.store->Release(lease_);
  gate.Fire(absl::OkStatus());
  EXPECT_EQ(Await(pushed).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Await(waiting).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(world_.store->stats().used_bytes, 0);
}

TEST_F(DeviceArrivalTest, ASenderThatStopsWhileItsSliceWaitsForRoomLeavesNothing) {
  EventSource gate;
  world_.device.HoldCopies(gate.event());
  const Event copied = Push(0, 0);
  world_.device.AwaitCopyEnqueued();
  const Event waiting = Push(1, 1);
  std::thread stopping([this] { world_.StopSender(1); });
  gate.Fire(absl::OkStatus());
  stopping.join();
  Await(waiting).IgnoreError();  // it was in time or it was not, but it is over
  EXPECT_TRUE(waiting.fired());
  EXPECT_EQ(Await(copied), absl::OkStatus());
  world_.store->Release(lease_);
  EXPECT_EQ(world_.store->stats().used_bytes, 0);
}

}  // namespace
}  // namespace runahead
