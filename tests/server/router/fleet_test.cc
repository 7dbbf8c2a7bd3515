#include "server/router/fleet.h"

#include <future>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/router/fleet_fixture.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using testing::FleetTest;

TEST_F(FleetTest, TheLineIsByHostThenInTheListsOrder) {
  Make(1);
  EXPECT_THAT(fleet_->line(), ElementsAre(1, 0, 3));
}

TEST_F(FleetTest, HostsStandInTheOrderOfTheirNumbers) {
  const Fleet fleet({{"prefill", "prefill-10.x:1"}, {"prefill", "prefill-2.x:1"}, {"decode", "prefill-1.x:1"}}, 1,
                    metrics_, clock_);
  EXPECT_THAT(fleet.line(), ElementsAre(1, 0));
}

TEST_F(FleetTest, TwoJobsAWorkerThenTheOldestWaitsFirst) {
  Make(10);
  const auto worker = Worker(0);
  fleet_->SetReady(worker);
  const Fleet::Ticket first(*fleet_), second(*fleet_), third(*fleet_), fourth(*fleet_);
  EXPECT_TRUE(Acquire(first).ok());
  EXPECT_TRUE(Acquire(second).ok());
  std::vector<int> order;
  auto later = std::async(std::launch::async, [&] {
    EXPECT_TRUE(Acquire(fourth).ok());
    order.push_back(4);
  });
  clock_.AwaitWaiters(1);
  auto earlier = std::async(std::launch::async, [&] {
    EXPECT_TRUE(Acquire(third).ok());
    order.push_back(3);
    fleet_->FinishJob(*worker, 2);
  });
  clock_.AwaitWaiters(2);
  fleet_->FinishJob(*worker, 1);
  earlier.get();
  later.get();
  EXPECT_THAT(order, ElementsAre(3, 4));
}

// Two workers halve 1,000 tokens.
TEST_F(FleetTest, KnownTimesChooseTheWidthByWhatEachWorkerStillHasToDo) {
  Make(10);
  const PartitionTable table = *PartitionTable::Create(
      {{1, 10, {1}, 0.1}, {1, 900, {1}, 8.0}, {2, 10, {0.5, 0.5}, 0.1}, {2, 900, {0.5, 0.5}, 4.0}});
  fleet_->SetReady(Worker(0));
  fleet_->SetReady(Worker(1));
  const auto width = [&](int64_t tokens) {
    const Fleet::Ticket ticket(*fleet_);
    return fleet_
        ->Acquire(ticket, {.tokens = tokens, .parts = {}}, table, cancel_, absl::InfiniteFuture(), std::nullopt)
        ->chain.size();
  };
  EXPECT_EQ(width(10), 1u);
  clock_.Advance(absl::Seconds(100));
  EXPECT_EQ(width(900), 2u);  // the short one is past its time
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(width(10), 1u);
}

TEST_F(FleetTest, ShortPromptsGoBetweenTheLayersOfWhatIsComputedThoughOthersWait) {
  Make(10);
  const auto worker = Worker(0);
  fleet_->SetReady(worker);
  const Fleet::Ticket tickets[] = {Fleet::Ticket(*fleet_), Fleet::Ticket(*fleet_), Fleet::Ticket(*fleet_),
                                   Fleet::Ticket(*fleet_), Fleet::Ticket(*fleet_), Fleet::Ticket(*fleet_)};
  const auto acquire = [&](int i, int64_t tokens) {
    return fleet_->Acquire(tickets[i], {.tokens = tokens, .parts = {}}, PartitionTable(), cancel_,
                           absl::InfiniteFuture(), std::nullopt);
  };
  const uint64_t computed = acquire(0, 1000)->number;
  ASSERT_TRUE(acquire(1, 1000).ok());
  auto waits = std::async(std::launch::async, [&] { return acquire(2, 1000); });
  clock_.AwaitWaiters(1);
  const absl::StatusOr<Placement> first = acquire(3, 100);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->plan.interleaved);
  // One at a time; the older one comes first.
  auto second = std::async(std::launch::async, [&] { return acquire(4, 100); });
  clock_.AwaitWaiters(2);
  auto third = std::async(std::launch::async, [&] { return acquire(5, 60); });
  clock_.AwaitWaiters(3);
  fleet_->FinishJob(*worker, first->number);
  const absl::StatusOr<Placement> placed = second.get();
  ASSERT_TRUE(placed.ok());
  EXPECT_TRUE(placed->plan.interleaved);
  // Of a quarter of 1,000 tokens 50 are left: too few. When the next one is computed, there is a quarter of that.
  fleet_->FinishJob(*worker, placed->number);
  clock_.AwaitWaiters(2);
  fleet_->FinishJob(*worker, computed);
  EXPECT_FALSE(waits.get()->plan.interleaved);
  EXPECT_TRUE(third.get()->plan.interleaved);
}

TEST_F(FleetTest, WhatNoWorkerWasToldOfTakesNothingOfTheBudget) {
  Make(0);
  const auto worker = Worker(0);
  fleet_->SetReady(worker);
  const auto place = [&](int64_t tokens) {
    const Fleet::Ticket ticket(*fleet_);
    return fleet_->Acquire(ticket, {.tokens = tokens, .parts = {}}, PartitionTable(), cancel_, absl::InfiniteFuture(),
                           std::nullopt);
  };
  ASSERT_TRUE(place(1000).ok());
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<Placement> returned = place(200);
    ASSERT_TRUE(returned.ok() && returned->plan.interleaved) << i;
    fleet_->WithdrawJob(*worker, returned->number);
  }
  const absl::StatusOr<Placement> used = place(200);
  ASSERT_TRUE(used.ok() && used->plan.interleaved);
  fleet_->FinishJob(*worker, used->number);
  EXPECT_FALSE(place(200)->plan.interleaved);  // behind
}

TEST_F(FleetTest, WhoWaitsForDecodeMemoryKeepsNobodyFromPlaces) {
  Make(10);
  const auto decode = Worker(2);
  fleet_->SetReady(Worker(0));
  fleet_->SetReady(decode);
  fleet_->LeaseTaken(*decode, 800);
  const Fleet::Ticket large(*fleet_), others[] = {Fleet::Ticket(*fleet_), Fleet::Ticket(*fleet_)};
  const Fleet::AfterFull full{fleet_->memory_changes(), absl::InfiniteDuration(), 900};
  auto waits = std::async(std::launch::async, [&] { return Acquire(large, absl::InfiniteFuture(), full).ok(); });
  clock_.AwaitWaiters(1);
  for (const Fleet::Ticket& other : others) EXPECT_TRUE(Acquire(other).ok());
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  fleet_->SetReady(Worker(1));
  fleet_->LeaseReturned(*decode, 800);
  EXPECT_TRUE(waits.get());
}

TEST_F(FleetTest, RoomIsKeptOnOneDecodeWorkerForWhoWasRefused) {
  Make(10);
  const auto one = Worker(2), two = Worker(3);
  fleet_->SetReady(one);
  fleet_->SetReady(two);
  fleet_->LeaseTaken(*one, 700);
  fleet_->LeaseTaken(*two, 800);
  auto large = std::make_unique<Fleet::Ticket>(*fleet_);
  const Fleet::Ticket later(*fleet_);
  const Fleet::AfterFull full{fleet_->memory_changes(), absl::InfiniteDuration(), 900};
  auto waits = std::async(std::launch::async, [&] { return Acquire(*large, absl::InfiniteFuture(), full).ok(); });
  clock_.AwaitWaiters(1);
  EXPECT_THAT(*fleet_->RankDecode(later, 100), ElementsAre(two));  // there as if nobody waited
  EXPECT_THAT(*fleet_->RankDecode(later, 500), ElementsAre(two));
  EXPECT_THAT(*fleet_->RankDecode(*large, 900), ElementsAre(one, two));
  fleet_->LeaseReturned(*one, 500);  // 800 are free
  EXPECT_THAT(*fleet_->RankDecode(later, 1), ElementsAre(two));
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  fleet_->LeaseReturned(*one, 200);
  EXPECT_TRUE(waits.get());
  EXPECT_THAT(*fleet_->RankDecode(later, 100), ElementsAre(two, one));
  EXPECT_THAT(*fleet_->RankDecode(later, 101), ElementsAre(two));
  fleet_->SetNotReady(3, WorkerState::kLost, "gone");
  EXPECT_EQ(fleet_->RankDecode(later, 101).status().code(), absl::StatusCode::kResourceExhausted);
  large.reset();
  EXPECT_THAT(*fleet_->RankDecode(later, 101), ElementsAre(one));
}

TEST_F(FleetTest, ARefusalTellsOfMemoryThatTheRouterDoesNotKnowToBeTaken) {
  Make(10);
  const auto one = Worker(2), two = Worker(3);
  fleet_->SetReady(one);
  fleet_->SetReady(two);
  fleet_->LeaseTaken(*two, 100);
  const Fleet::Ticket ticket(*fleet_);
  EXPECT_THAT(*fleet_->RankDecode(ticket, 100), ElementsAre(one, two));
  fleet_->LeaseRefused(*one, 200);
  EXPECT_THAT(*fleet_->RankDecode(ticket, 100), ElementsAre(two, one));
  // It had as much as it gave: 950 after the two, and half of the 200 that are unknown go with one of them.
  for (const int64_t tokens : {50, 700}) fleet_->LeaseTaken(*one, tokens);
  fleet_->LeaseReturned(*one, 700);
  fleet_->LeaseTaken(*two, 250);
  EXPECT_THAT(*fleet_->RankDecode(ticket, 100), ElementsAre(one, two));
}

TEST_F(FleetTest, AnInterleavedPromptKeepsTheOthersWaiting) {
  Make(10);
  const PartitionTable table = *PartitionTable::Create({{1, 100, {1}, 1.0}, {1, 1000, {1}, 10.0}});
  fleet_->SetReady(Worker(1));
  const auto place = [&](int64_t tokens) {
    const Fleet::Ticket ticket(*fleet_);
    return *fleet_->Acquire(ticket, {.tokens = tokens, .parts = {}}, table, cancel_, absl::InfiniteFuture(),
                            std::nullopt);
  };
  place(1000);  // 10 s
  const Placement short_one = place(100);
  EXPECT_TRUE(short_one.plan.interleaved);
  fleet_->SetReady(Worker(0));
  EXPECT_EQ(place(1000).chain[0]->index, 0);  // until 10 s
  EXPECT_EQ(place(1000).chain[0]->index, 0);  // behind that; the head of the line is free after 11 s
}

TEST_F(FleetTest, RefusesWhenTheQueueIsFullAndGivesUpAtTheDeadline) {
  Make(1);
  fleet_->SetReady(Worker(0));
  const Fleet::Ticket a(*fleet_), b(*fleet_), c(*fleet_), d(*fleet_);
  EXPECT_TRUE(Acquire(a).ok());
  EXPECT_TRUE(Acquire(b).ok());
  auto waiting = std::async(std::launch::async, [&] { return Acquire(c, clock_.Now() + absl::Seconds(1)).status(); });
  clock_.AwaitWaiters(1);
  EXPECT_EQ(Acquire(d).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(fleet_->EnterQueue().code(), absl::StatusCode::kResourceExhausted);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(waiting.get().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(fleet_->EnterQueue().ok());
  fleet_->LeaveQueue();
}

TEST_F(FleetTest, ACancelWakesTheOneThatWaits) {
  Make(5);
  fleet_->SetReady(Worker(0));
  const Fleet::Ticket a(*fleet_), b(*fleet_), c(*fleet_);
  EXPECT_TRUE(Acquire(a).ok());
  EXPECT_TRUE(Acquire(b).ok());
  auto waiting = std::async(std::launch::async, [&] { return Acquire(c).status(); });
  clock_.AwaitWaiters(1);
  cancel_.Cancel(absl::CancelledError("gone"));
  EXPECT_EQ(waiting.get(), absl::CancelledError("gone"));
}

TEST_F(FleetTest, AfterFullWaitsForMemoryOrForTheTime) {
  Make(5);
  const auto decode = Worker(2);
  fleet_->SetReady(Worker(0));
  fleet_->SetReady(decode);
  const Fleet::Ticket ticket(*fleet_);
  const Fleet::AfterFull full{fleet_->memory_changes(), absl::Seconds(1), 100};
  auto by_memory = std::async(std::launch::async, [&] { return Acquire(ticket, absl::InfiniteFuture(), full).ok(); });
  clock_.AwaitWaiters(1);
  fleet_->LeaseReturned(*decode, 0);
  EXPECT_TRUE(by_memory.get());
  const Fleet::AfterFull again{fleet_->memory_changes(), absl::Seconds(1), 100};
  auto by_time = std::async(std::launch::async, [&] { return Acquire(ticket, absl::InfiniteFuture(), again).ok(); });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(by_time.get());
}

TEST_F(FleetTest, SlotsOfALostIncarnationDoNotCountForTheNext) {
  Make(0);
  const auto old = Worker(0);
  fleet_->SetReady(old);
  const Fleet::Ticket a(*fleet_), b(*fleet_), c(*fleet_), d(*fleet_);
  EXPECT_TRUE(Acquire(a).ok());
  EXPECT_TRUE(Acquire(b).ok());
  fleet_->SetNotReady(0, WorkerState::kLost, "gone");
  const absl::Status status = Acquire(c).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("b:1: gone"));
  fleet_->SetReady(Worker(0));
  EXPECT_TRUE(Acquire(c).ok());
  fleet_->FinishJob(*old, 1);  // late: of the old one
  EXPECT_TRUE(Acquire(d).ok());
  EXPECT_EQ(Acquire(a).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FleetTest, RanksDecodeWorkersByWhatIsFree) {
  Make(1);
  const auto one = Worker(2), two = Worker(3);
  fleet_->SetReady(one);
  fleet_->SetReady(two);
  const Fleet::Ticket ticket(*fleet_);
  fleet_->LeaseTaken(*one, 600);
  EXPECT_EQ(fleet_->RankDecode(ticket, 500)->at(0), two);
  fleet_->LeaseTaken(*two, 700);
  EXPECT_EQ(fleet_->RankDecode(ticket, 500)->at(0), one);
  fleet_->LeaseReturned(*two, 700);
  EXPECT_EQ(fleet_->RankDecode(ticket, 500)->at(0), two);
  EXPECT_EQ(fleet_->RankDecode(ticket, 1001).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(FleetTest, WhatAWorkerThatIsAwayCouldHoldIsNotRefusedForGood) {
  Make(1);
  const Fleet::Ticket ticket(*fleet_);
  const auto place = [&](int64_t tokens) {
    return fleet_
        ->Acquire(ticket, {.tokens = tokens, .parts = {}}, PartitionTable(), cancel_, absl::InfiniteFuture(),
                  std::nullopt)
        .status();
  };
  const auto large = Worker(0, 3000);
  large->capabilities.set_max_prefix_tokens(3000);
  fleet_->SetReady(Worker(1));
  fleet_->SetReady(Worker(2));
  for (const absl::Status& status : {place(1001), fleet_->RankDecode(ticket, 1001).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);  // of the others nothing is known yet
    EXPECT_THAT(status.message(), HasSubstr("b:2: not reached yet"));
  }
  const auto both = Worker(3, 3000);
  both->capabilities.set_max_prefix_tokens(2000);
  fleet_->SetReady(large);
  fleet_->SetReady(both);
  EXPECT_EQ(place(3001).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(fleet_->RankDecode(ticket, 3001).status().code(), absl::StatusCode::kOutOfRange);
  fleet_->SetNotReady(0, WorkerState::kLost, "restarts");
  fleet_->SetNotReady(3, WorkerState::kLost, "restarts");
  for (const absl::Status& status : {place(3000), fleet_->RankDecode(ticket, 3000).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("restarts"));
  }
  EXPECT_EQ(place(3001).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(fleet_->RankDecode(ticket, 3001).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(FleetTest, KnowsEachBuildOfThoseThatAreReady) {
  Make(1);
  EXPECT_THAT(fleet_->builds(), ElementsAre());
  const char* const builds[] = {"2.0 beef", "1.0 cafe", "2.0 beef", "3.0 away"};
  for (int index = 0; index < 4; ++index) {
    const auto worker = Worker(index);
    worker->capabilities.set_build(builds[index]);
    fleet_->SetReady(worker);
  }
  fleet_->SetNotReady(3, WorkerState::kLost, "gone");
  EXPECT_THAT(fleet_->builds(), ElementsAre("1.0 cafe", "2.0 beef"));
}

}  // namespace
}  // namespace runahead
