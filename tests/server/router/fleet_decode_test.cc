// Tickets that wait for decode workers, by a clock that only the test moves.
#include <future>

#include "gmock/gmock.h"
#include "tests/server/router/fleet_fixture.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

class FleetDecodeTest : public testing::FleetTest {
 protected:
  // A prefill worker, and a decode worker of so many slots.
  void MakeWithSlots(int slots) {
    Make(10);
    fleet_->SetReady(Worker(0));
    decode_ = Worker(2);
    decode_->capabilities.set_max_batch(slots);
    decode_->capabilities.set_kv_block_tokens(10);
    fleet_->SetReady(decode_);
  }
  // All slots are taken, by sequences that have so many tokens left, at a tenth of a second each.
  void Say(const std::vector<int>& remaining) {
    v1::DecodeLoad load;
    load.set_slots_used(static_cast<int>(remaining.size()));
    load.set_running(load.slots_used());
    load.set_blocks_growable(100);
    load.set_step_ns(absl::ToInt64Nanoseconds(absl::Milliseconds(100)));
    for (const int tokens : remaining) load.add_remaining_tokens(tokens);
    fleet_->TakeLoad(2, load, clock_.Now());
  }
  std::future<absl::Status> Waits(const FleetQueue::Ticket& ticket, double lead_s,
                                  absl::Time deadline = absl::InfiniteFuture(),
                                  absl::Duration retry_after = absl::InfiniteDuration()) {
    const FleetQueue::AfterFull full{queue_->decode_changes(), retry_after, {10, lead_s}};
    return std::async(std::launch::async,
                      [this, &ticket, full, deadline] { return Acquire(ticket, deadline, full).status(); });
  }
  static bool Done(std::future<absl::Status>& waits) {
    return waits.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  std::shared_ptr<LiveWorker> decode_;
};

TEST_F(FleetDecodeTest, PrefillBeginsWhenASlotIsPredictedToBeFreeOnceKvHasCome) {
  MakeWithSlots(2);
  Say({10, 30});  // the first one ends in a second at the latest
  const FleetQueue::Ticket ticket(*queue_);
  auto waits = Waits(ticket, 0.4);
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Milliseconds(590));
  clock_.AwaitWaiters(1);
  EXPECT_FALSE(Done(waits));
  EXPECT_EQ(queue_->RankDecode(ticket, {10, 0.4}).status().code(), absl::StatusCode::kResourceExhausted);
  clock_.Advance(absl::Milliseconds(10));
  EXPECT_TRUE(waits.get().ok());
  EXPECT_THAT(*queue_->RankDecode(ticket, {10, 0.4}), ElementsAre(decode_));
}

TEST_F(FleetDecodeTest, TheNextOneWaitsForTheNextEnd) {
  MakeWithSlots(2);
  Say({10, 30});
  const FleetQueue::Ticket first(*queue_), second(*queue_);
  auto waits = Waits(first, 0);
  clock_.AwaitWaiters(1);
  auto next = Waits(second, 0);
  clock_.AwaitWaiters(2);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(waits.get().ok());
  // The first has its lease, and so the slot that is free in a moment.
  ASSERT_TRUE(queue_->LeaseAsked(first, {10}, *decode_).ok());
  fleet_->LeaseTaken(*decode_, 10);
  fleet_->LeaseAnswered(*decode_);
  queue_->Settled(first);
  clock_.AwaitWaiters(1);
  EXPECT_FALSE(Done(next));
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(next.get().ok());
}

// Was: it waited for a slot of a worker that was gone, for as long as it liked.
TEST_F(FleetDecodeTest, WhoWaitsForASlotOfAWorkerThatGoesLooksAgain) {
  MakeWithSlots(1);
  Say({1000});
  const FleetQueue::Ticket ticket(*queue_);
  auto waits = Waits(ticket, 0, absl::InfiniteFuture(), absl::Seconds(1));
  clock_.AwaitWaiters(1);
  fleet_->SetNotReady(2, WorkerState::kLost, "it is gone");
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(waits.get().ok()) << "it has a place, and hears that there is no decode worker when it asks for one";
  EXPECT_EQ(queue_->RankDecode(ticket, {10}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(FleetDecodeTest, LowPriorityLeavesRoomInTheQueueToNormal) {
  Make(8);
  std::vector<std::unique_ptr<FleetQueue::Ticket>> tickets;
  std::vector<std::future<absl::Status>> waits;
  const auto come = [&](RequestPriority priority) {
    tickets.push_back(std::make_unique<FleetQueue::Ticket>(*queue_, Claim{.priority = priority}));
    const FleetQueue::AfterFull full{queue_->decode_changes(), absl::InfiniteDuration(), {10}};
    waits.push_back(std::async(std::launch::async, [this, &ticket = *tickets.back(), full] {
      return Acquire(ticket, absl::InfiniteFuture(), full).status();
    }));
  };
  for (int i = 0; i < 7; ++i) {
    come(RequestPriority::kLow);
    clock_.AwaitWaiters(i + 1);
  }
  come(RequestPriority::kLow);
  EXPECT_EQ(waits.back().get().code(), absl::StatusCode::kResourceExhausted);
  come(RequestPriority::kNormal);
  clock_.AwaitWaiters(8);
  cancel_.Cancel(absl::CancelledError("the test is over"));
  for (size_t i = 0; i < waits.size(); ++i) {
    if (!waits[i].valid()) continue;
    EXPECT_EQ(waits[i].get().code(), absl::StatusCode::kCancelled) << i;
  }
}

TEST_F(FleetDecodeTest, WhoseDeadlinePassesLeavesAtOnce) {
  MakeWithSlots(1);
  Say({1000});
  const FleetQueue::Ticket ticket(*queue_);
  auto waits = Waits(ticket, 0, clock_.Now() + absl::Seconds(3));
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(waits.get().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(FleetDecodeTest, TwoThatAskAtOnceDoNotGetTheSameSlot) {
  MakeWithSlots(1);
  const FleetQueue::Ticket one(*queue_), two(*queue_);
  ASSERT_TRUE(queue_->RankDecode(one, {10}).ok());
  ASSERT_TRUE(queue_->RankDecode(two, {10}).ok());
  ASSERT_TRUE(queue_->LeaseAsked(one, {10}, *decode_).ok());
  EXPECT_EQ(queue_->LeaseAsked(two, {10}, *decode_).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queue_->RankDecode(two, {10}).status().code(), absl::StatusCode::kResourceExhausted);
  fleet_->LeaseAnswered(*decode_);  // refused
  EXPECT_TRUE(queue_->RankDecode(two, {10}).ok());
}

TEST_F(FleetDecodeTest, LeasesAreTakenToGrowOnceTheirWorkerSaysSo) {
  MakeWithSlots(4);
  const auto view = [&] { return fleet_->DecodeViews().at(2); };
  EXPECT_FALSE(view().grows);
  fleet_->LeaseRefused(*decode_, {.tokens = 800, .expected_tokens = 100});
  EXPECT_EQ(view().room(), 799);
  v1::DecodeLoad load;
  load.set_blocks_growable(100);
  load.set_leases_grow(true);
  fleet_->TakeLoad(2, load, clock_.Now());
  EXPECT_TRUE(view().grows);
  fleet_->LeaseRefused(*decode_, {.tokens = 800, .expected_tokens = 100});
  EXPECT_EQ(view().room(), 99);
  fleet_->SetNotReady(2, WorkerState::kLost, "it is gone");
  fleet_->SetReady(decode_);
  EXPECT_FALSE(view().grows) << "another process may be there";
}

TEST_F(FleetDecodeTest, WhatPromptsTookIsTheLeadOfTheNext) {
  MakeWithSlots(1);
  const FleetQueue::Ticket ticket(*queue_);
  EXPECT_EQ(Acquire(ticket)->first_token_in, absl::ZeroDuration());
  queue_->PrefillTook(5, 1, absl::Seconds(2));
  const FleetQueue::Ticket behind(*queue_);
  EXPECT_EQ(Acquire(behind)->first_token_in, absl::Seconds(2) + absl::Milliseconds(1)) << "the first is past its time";
}

TEST_F(FleetDecodeTest, ExpectsAFirstTokenBehindThoseThatGoFirst) {
  MakeWithSlots(2);
  const auto expect = [&](const FleetQueue::Ticket& ticket, bool decodes) {
    return queue_->ExpectFirstToken(ticket, {.tokens = 5, .parts = {}}, PartitionTable(), decodes);
  };
  const FleetQueue::Ticket one(*queue_), two(*queue_);
  EXPECT_EQ(expect(one, true), absl::ZeroDuration()) << "nothing is known";
  queue_->PrefillTook(5, 1, absl::Seconds(1));
  EXPECT_EQ(expect(one, true), absl::ZeroDuration()) << "nothing goes before it";
  fleet_->LeaseTaken(*decode_, 10);
  fleet_->LeaseReturned(*decode_, 10, absl::Seconds(20));
  EXPECT_EQ(expect(one, true), absl::ZeroDuration()) << "a slot is free";
  Say({1000, 1000});
  EXPECT_EQ(expect(one, true), absl::Seconds(10)) << "of two slots one is given back in ten seconds";
  Say({20, 1000});
  EXPECT_EQ(expect(one, true), absl::Seconds(2)) << "one ends sooner than that";
  Say({1000, 1000});
  auto waits = Waits(one, 0);
  clock_.AwaitWaiters(1);
  EXPECT_EQ(expect(two, true), absl::Seconds(20));
  EXPECT_EQ(expect(two, false), absl::ZeroDuration()) << "it needs no slot";
  cancel_.Cancel(absl::CancelledError("the end"));
  waits.get().IgnoreError();
}

}  // namespace
}  // namespace runahead
