#include "server/router/fleet.h"

#include <chrono>
#include <future>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/together.h"
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
  const Fleet fleet({{"prefill", "prefill-10.x:1"}, {"prefill", "prefill-2.x:1"}, {"decode", "prefill-1.x:1"}},
                    metrics_, clock_);
  EXPECT_THAT(fleet.line(), ElementsAre(1, 0));
}

TEST_F(FleetTest, TwoJobsAWorkerThenTheOldestWaitsFirst) {
  Make(10);
  const auto worker = Worker(0);
  fleet_->SetReady(worker);
  const FleetQueue::Ticket first(*queue_), second(*queue_), third(*queue_), fourth(*queue_);
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
    const FleetQueue::Ticket ticket(*queue_);
    return RunHere(queue_->Acquire(ticket, {.tokens = tokens, .parts = {}}, table, cancel_, absl::InfiniteFuture(),
                                   std::nullopt))
        ->chain.size();
  };
  EXPECT_EQ(width(10), 1u);
  clock_.Advance(absl::Seconds(100));
  EXPECT_EQ(width(900), 2u);  // the short one is past its time
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(width(10), 1u);
}

TEST_F(FleetTest, AllOfAChainBearTogetherWhatItsPromptBears) {
  Make(10);
  const PartitionTable table = *PartitionTable::Create(
      {{1, 10, {1}, 0.1}, {1, 900, {1}, 8.0}, {2, 10, {0.5, 0.5}, 0.1}, {2, 900, {0.5, 0.5}, 4.0}});
  fleet_->SetReady(Worker(0));
  fleet_->SetReady(Worker(1));
  const FleetQueue::Ticket ticket(*queue_);
  const absl::StatusOr<Placement> placement =
      RunHere(queue_->Acquire(ticket, {.tokens = 900, .width = 2, .parts = {}}, table, cancel_, clock_.Now(), {}));
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_DOUBLE_EQ(placement->allowance.left_s(), 4.0 / kOvertakenShare / 2);
}

TEST_F(FleetTest, ShortPromptsGoBetweenTheLayersOfWhatIsComputedThoughOthersWait) {
  Make(10);
  const auto worker = Worker(0);
  fleet_->SetReady(worker);
  const FleetQueue::Ticket tickets[] = {FleetQueue::Ticket(*queue_), FleetQueue::Ticket(*queue_),
                                        FleetQueue::Ticket(*queue_), FleetQueue::Ticket(*queue_),
                                        FleetQueue::Ticket(*queue_), FleetQueue::Ticket(*queue_)};
  const auto acquire = [&](int i, int64_t tokens) {
    return RunHere(queue_->Acquire(tickets[i], {.tokens = tokens, .parts = {}}, PartitionTable(), cancel_,
                                   absl::InfiniteFuture(), std::nullopt));
  };
  const uint64_t computed = acquire(0, 1000)->number;
  const uint64_t second = acquire(1, 1000)->number;
  auto waits = std::async(std::launch::async, [&] { return acquire(2, 1000); });
  clock_.AwaitWaiters(1);
  for (const int i : {3, 4}) {
    const absl::StatusOr<Placement> between = acquire(i, 100);
    ASSERT_TRUE(between.ok()) << between.status();
    EXPECT_TRUE(between->plan.overtakes);
  }
  // Of a quarter of the time of 1,000 tokens that of 50 is left: too little.
  auto last = std::async(std::launch::async, [&] { return acquire(5, 60); });
  clock_.AwaitWaiters(2);
  fleet_->FinishJob(*worker, computed);
  EXPECT_FALSE(waits.get()->plan.overtakes);
  fleet_->FinishJob(*worker, second);
  EXPECT_FALSE(last.get()->plan.overtakes);
}

// Prompts of so many tokens ask one after the other.
class SharedPlacesTest : public FleetTest {
 protected:
  SharedPlacesTest() {
    Make(10);
    worker_ = Worker(0);
    fleet_->SetReady(worker_);
  }
  absl::StatusOr<Placement> Acquire(int64_t tokens, absl::Time deadline) {
    const FleetQueue::Ticket ticket(*queue_);
    absl::StatusOr<Placement> placement = RunHere(queue_->Acquire(ticket, {.tokens = tokens, .width = 1, .parts = {}},
                                                                  PartitionTable(), cancel_, deadline, std::nullopt));
    if (placement.ok()) queue_->Settled(ticket);
    return placement;
  }
  uint64_t Placed(int64_t tokens) { return Acquire(tokens, clock_.Now())->number; }
  bool MustWait(int64_t tokens) { return absl::IsDeadlineExceeded(Acquire(tokens, clock_.Now()).status()); }
  // One after the other.
  std::future<absl::StatusOr<Placement>> Ask(int64_t tokens) {
    return std::async(std::launch::async, [this, tokens] { return Acquire(tokens, absl::InfiniteFuture()); });
  }
  void Finish(uint64_t placement) { fleet_->FinishJob(*worker_, placement); }

  std::shared_ptr<LiveWorker> worker_;
};

TEST_F(SharedPlacesTest, ShortPromptsThatWaitForAWorkerHaveOnePlace) {
  const uint64_t computed = Placed(50);
  for (const int64_t tokens : {int64_t{50}, int64_t{50}, kRowsTogether - 100}) Placed(tokens);
  EXPECT_TRUE(MustWait(1));
  Finish(computed);  // what waited is computed now, and the next ones wait for that
  Placed(1);
  Placed(kRowsTogether - 1);
  EXPECT_TRUE(MustWait(1));
}

TEST_F(SharedPlacesTest, APlaceIsFreeWhenTheLastThatHasItHasEnded) {
  const uint64_t computed = Placed(50);
  const uint64_t one = Placed(50), other = Placed(60);
  Finish(computed);
  Placed(200);
  EXPECT_TRUE(MustWait(200));
  Finish(one);
  EXPECT_TRUE(MustWait(200));
  Finish(other);
  Placed(200);
}

TEST_F(SharedPlacesTest, WhoWithdrawsLeavesRoomForAnother) {
  Placed(50);
  Placed(50);
  const uint64_t gone = Placed(70);
  EXPECT_TRUE(MustWait(60));
  fleet_->WithdrawJob(*worker_, gone);
  Placed(60);
}

// A token counts a millisecond, and 32 at least: the long one bears an eighth of a second, and three short ones that go
// with the one that has a place.
TEST_F(SharedPlacesTest, ALongPromptIsNotOvertakenBeyondWhatItBears) {
  const uint64_t computed = Placed(50);
  Placed(50);
  auto long_one = Ask(500);
  clock_.AwaitWaiters(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Acquire(10, clock_.Now()).ok()) << i;
  EXPECT_TRUE(MustWait(10));
  Finish(computed);
  long_one.wait_for(std::chrono::seconds(30));
  cancel_.Cancel(absl::CancelledError("it is placed, or never will be"));
  EXPECT_TRUE(long_one.get().ok());
}

TEST_F(SharedPlacesTest, ALongPromptSharesNothing) {
  Placed(50);
  Placed(kRowsTogether + 1);
  EXPECT_TRUE(MustWait(kRowsTogether / 2)) << "nor does it bear so much";
}

// Two such would share a pass, at least.
TEST_F(SharedPlacesTest, ThoseThatWaitAreExpectedToTakeTheirShareOfAPass) {
  queue_->PrefillTook(kRowsTogether / 2, 1, absl::Seconds(1));
  Placed(50);
  Placed(200);
  const FleetQueue::Ticket last(*queue_, {.priority = RequestPriority::kLow});
  const auto expect = [&] {
    return queue_->ExpectFirstToken(last, {.tokens = 500, .width = 1, .parts = {}}, PartitionTable(), false);
  };
  const absl::Duration before = expect();
  auto waits = Ask(kRowsTogether / 2);
  clock_.AwaitWaiters(1);
  EXPECT_NEAR(absl::ToDoubleSeconds(expect() - before), 0.5, 1e-6);
  cancel_.Cancel(absl::CancelledError("the end"));
  EXPECT_FALSE(waits.get().ok());
}

TEST_F(FleetTest, WhatNoWorkerWasToldOfTakesNothingOfTheBudget) {
  Make(0);
  const auto worker = Worker(0);
  fleet_->SetReady(worker);
  const auto place = [&](int64_t tokens) {
    const FleetQueue::Ticket ticket(*queue_);
    return RunHere(queue_->Acquire(ticket, {.tokens = tokens, .parts = {}}, PartitionTable(), cancel_,
                                   absl::InfiniteFuture(), std::nullopt));
  };
  ASSERT_TRUE(place(1000).ok());
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<Placement> returned = place(200);
    ASSERT_TRUE(returned.ok() && returned->plan.overtakes) << i;
    fleet_->WithdrawJob(*worker, returned->number);
  }
  const absl::StatusOr<Placement> used = place(200);
  ASSERT_TRUE(used.ok() && used->plan.overtakes);
  fleet_->FinishJob(*worker, used->number);
  EXPECT_FALSE(place(200)->plan.overtakes);  // behind
}

TEST_F(FleetTest, WhoWaitsForDecodeMemoryKeepsNobodyFromPlaces) {
  Make(10);
  const auto decode = Worker(2);
  fleet_->SetReady(Worker(0));
  fleet_->SetReady(decode);
  fleet_->LeaseTaken(*decode, 800);
  const FleetQueue::Ticket large(*queue_), others[] = {FleetQueue::Ticket(*queue_), FleetQueue::Ticket(*queue_)};
  const FleetQueue::AfterFull full{queue_->decode_changes(), absl::InfiniteDuration(), {900}};
  auto waits = std::async(std::launch::async, [&] { return Acquire(large, absl::InfiniteFuture(), full).ok(); });
  clock_.AwaitWaiters(1);
  for (const FleetQueue::Ticket& other : others) EXPECT_TRUE(Acquire(other).ok());
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  fleet_->SetReady(Worker(1));
  fleet_->LeaseReturned(*decode, 800, absl::Seconds(1));
  EXPECT_TRUE(waits.get());
}

TEST_F(FleetTest, RoomIsKeptOnOneDecodeWorkerForWhoWasRefused) {
  Make(10);
  const auto one = Worker(2), two = Worker(3);
  fleet_->SetReady(one);
  fleet_->SetReady(two);
  fleet_->LeaseTaken(*one, 700);
  fleet_->LeaseTaken(*two, 800);
  auto large = std::make_unique<FleetQueue::Ticket>(*queue_);
  const FleetQueue::Ticket later(*queue_);
  const FleetQueue::AfterFull full{queue_->decode_changes(), absl::InfiniteDuration(), {900}};
  auto waits = std::async(std::launch::async, [&] { return Acquire(*large, absl::InfiniteFuture(), full).ok(); });
  clock_.AwaitWaiters(1);
  EXPECT_THAT(*queue_->RankDecode(later, {100}), ElementsAre(two));  // there as if nobody waited
  EXPECT_THAT(*queue_->RankDecode(later, {500}), ElementsAre(two));
  EXPECT_THAT(*queue_->RankDecode(*large, {900}), ElementsAre(one, two));
  fleet_->LeaseReturned(*one, 500, absl::Seconds(1));  // 800 are free
  EXPECT_THAT(*queue_->RankDecode(later, {1}), ElementsAre(two));
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  fleet_->LeaseReturned(*one, 200, absl::Seconds(1));
  EXPECT_TRUE(waits.get());
  EXPECT_THAT(*queue_->RankDecode(later, {100}), ElementsAre(two, one));
  EXPECT_THAT(*queue_->RankDecode(later, {101}), ElementsAre(two));
  fleet_->SetNotReady(3, WorkerState::kLost, "gone");
  EXPECT_EQ(queue_->RankDecode(later, {101}).status().code(), absl::StatusCode::kResourceExhausted);
  large.reset();
  EXPECT_THAT(*queue_->RankDecode(later, {101}), ElementsAre(one));
}

TEST_F(FleetTest, ARefusalTellsOfMemoryThatTheRouterDoesNotKnowToBeTaken) {
  Make(10);
  const auto one = Worker(2), two = Worker(3);
  fleet_->SetReady(one);
  fleet_->SetReady(two);
  fleet_->LeaseTaken(*two, 100);
  const FleetQueue::Ticket ticket(*queue_);
  EXPECT_THAT(*queue_->RankDecode(ticket, {100}), ElementsAre(one, two));
  fleet_->LeaseRefused(*one, {200});
  EXPECT_THAT(*queue_->RankDecode(ticket, {100}), ElementsAre(two, one));
  // It had as much as it gave: 950 after the two, and half of the 200 that are unknown go with one of them.
  for (const int64_t tokens : {50, 700}) fleet_->LeaseTaken(*one, tokens);
  fleet_->LeaseReturned(*one, 700, absl::Seconds(1));
  fleet_->LeaseTaken(*two, 250);
  EXPECT_THAT(*queue_->RankDecode(ticket, {100}), ElementsAre(one, two));
}

TEST_F(FleetTest, AnInterleavedPromptKeepsTheOthersWaiting) {
  Make(10);
  const PartitionTable table = *PartitionTable::Create({{1, 100, {1}, 1.0}, {1, 1000, {1}, 10.0}});
  fleet_->SetReady(Worker(1));
  const auto place = [&](int64_t tokens) {
    const FleetQueue::Ticket ticket(*queue_);
    return *RunHere(
        queue_->Acquire(ticket, {.tokens = tokens, .parts = {}}, table, cancel_, absl::InfiniteFuture(), std::nullopt));
  };
  place(1000);  // 10 s
  const Placement short_one = place(100);
  EXPECT_TRUE(short_one.plan.overtakes);
  fleet_->SetReady(Worker(0));
  EXPECT_EQ(place(1000).chain[0]->index, 0);  // until 10 s
  EXPECT_EQ(place(1000).chain[0]->index, 0);  // behind that; the head of the line is free after 11 s
}

TEST_F(FleetTest, RefusesWhenTheQueueIsFullAndGivesUpAtTheDeadline) {
  Make(1);
  fleet_->SetReady(Worker(0));
  const FleetQueue::Ticket a(*queue_), b(*queue_), c(*queue_), d(*queue_);
  EXPECT_TRUE(Acquire(a).ok());
  EXPECT_TRUE(Acquire(b).ok());
  auto waiting = std::async(std::launch::async, [&] { return Acquire(c, clock_.Now() + absl::Seconds(1)).status(); });
  clock_.AwaitWaiters(1);
  EXPECT_EQ(Acquire(d).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queue_->EnterQueue().status().code(), absl::StatusCode::kResourceExhausted);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(waiting.get().code(), absl::StatusCode::kDeadlineExceeded);
  const absl::StatusOr<absl::Time> since = queue_->EnterQueue();
  ASSERT_TRUE(since.ok());
  queue_->LeaveQueue(*since);
}

TEST_F(FleetTest, WhoWaitsForABeginningTakesAPlaceInTheQueue) {
  Make(1);
  fleet_->SetReady(Worker(0));
  const FleetQueue::Ticket a(*queue_), b(*queue_), waits(*queue_), later(*queue_);
  EXPECT_TRUE(Acquire(a).ok());
  EXPECT_TRUE(Acquire(b).ok());
  ASSERT_TRUE(queue_->EnterForBeginning(waits).ok());
  EXPECT_EQ(Acquire(later).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queue_->EnterForBeginning(later).code(), absl::StatusCode::kResourceExhausted);
  queue_->LeaveForBeginning(waits);
  EXPECT_TRUE(queue_->EnterForBeginning(later).ok());
  EXPECT_EQ(queue_->EnterForBeginning(waits).code(), absl::StatusCode::kResourceExhausted) << "though it was admitted";
  queue_->LeaveForBeginning(later);
  {
    const FleetQueue::Ticket gone(*queue_);
    EXPECT_TRUE(queue_->EnterForBeginning(gone).ok());
  }
  EXPECT_TRUE(queue_->EnterForBeginning(waits).ok()) << "a ticket that goes leaves its place";
  queue_->LeaveForBeginning(waits);
}

TEST_F(FleetTest, NobodyIsExpectedBackWhereAllThatAreAwayAreRefused) {
  Make(10);
  fleet_->SetReady(Worker(0));
  const FleetQueue::Ticket ticket(*queue_);
  const auto returns = [&](WorkerRole missing) {
    return *RunHere(queue_->AwaitReturn(ticket, {.tokens = 5, .parts = {}}, missing, queue_->returns(), absl::Hours(1),
                                        absl::ZeroDuration(), cancel_, absl::InfiniteFuture()));
  };
  fleet_->SetNotReady(2, WorkerState::kRefused, "another model");
  auto waits = std::async(std::launch::async, [&] { return returns(WorkerRole::kDecode); });
  clock_.AwaitWaiters(1);  // for the other one that decodes
  fleet_->SetNotReady(3, WorkerState::kRefused, "another model");
  EXPECT_FALSE(waits.get());
  EXPECT_FALSE(returns(WorkerRole::kDecode)) << "nor from the beginning";
  // One prefill worker has not joined yet, and one that decodes is lost.
  waits = std::async(std::launch::async, [&] { return returns(WorkerRole::kPrefill); });
  clock_.AwaitWaiters(1);
  fleet_->SetReady(Worker(1));
  EXPECT_TRUE(waits.get());
  fleet_->SetReady(Worker(2));
  fleet_->SetNotReady(2, WorkerState::kLost, "gone");
  waits = std::async(std::launch::async, [&] { return returns(WorkerRole::kDecode); });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(waits.get());
}

TEST_F(FleetTest, ACancelWakesTheOneThatWaits) {
  Make(5);
  fleet_->SetReady(Worker(0));
  const FleetQueue::Ticket a(*queue_), b(*queue_), c(*queue_);
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
  const FleetQueue::Ticket ticket(*queue_);
  const FleetQueue::AfterFull full{queue_->decode_changes(), absl::Seconds(1), {100}};
  auto by_memory = std::async(std::launch::async, [&] { return Acquire(ticket, absl::InfiniteFuture(), full).ok(); });
  clock_.AwaitWaiters(1);
  fleet_->LeaseReturned(*decode, 0, absl::Seconds(1));
  EXPECT_TRUE(by_memory.get());
  const FleetQueue::AfterFull again{queue_->decode_changes(), absl::Seconds(1), {100}};
  auto by_time = std::async(std::launch::async, [&] { return Acquire(ticket, absl::InfiniteFuture(), again).ok(); });
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(by_time.get());
}

TEST_F(FleetTest, SlotsOfALostIncarnationDoNotCountForTheNext) {
  Make(0);
  const auto old = Worker(0);
  fleet_->SetReady(old);
  const FleetQueue::Ticket a(*queue_), b(*queue_), c(*queue_), d(*queue_);
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
  const FleetQueue::Ticket ticket(*queue_);
  fleet_->LeaseTaken(*one, 600);
  EXPECT_EQ(queue_->RankDecode(ticket, {500})->at(0), two);
  fleet_->LeaseTaken(*two, 700);
  EXPECT_EQ(queue_->RankDecode(ticket, {500})->at(0), one);
  fleet_->LeaseReturned(*two, 700, absl::Seconds(1));
  EXPECT_EQ(queue_->RankDecode(ticket, {500})->at(0), two);
  EXPECT_EQ(queue_->RankDecode(ticket, {1001}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(FleetTest, WhatAWorkerThatIsAwayCouldHoldIsNotRefusedForGood) {
  Make(1);
  const FleetQueue::Ticket ticket(*queue_);
  const auto place = [&](int64_t tokens) {
    return RunHere(queue_->Acquire(ticket, {.tokens = tokens, .parts = {}}, PartitionTable(), cancel_,
                                   absl::InfiniteFuture(), std::nullopt))
        .status();
  };
  const auto large = Worker(0, 3000);
  large->capabilities.set_max_prefix_tokens(3000);
  fleet_->SetReady(Worker(1));
  fleet_->SetReady(Worker(2));
  for (const absl::Status& status : {place(1001), queue_->RankDecode(ticket, {1001}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);  // of the others nothing is known yet
    EXPECT_THAT(status.message(), HasSubstr("b:2: not reached yet"));
  }
  const auto both = Worker(3, 3000);
  both->capabilities.set_max_prefix_tokens(2000);
  fleet_->SetReady(large);
  fleet_->SetReady(both);
  EXPECT_EQ(place(3001).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(queue_->RankDecode(ticket, {3001}).status().code(), absl::StatusCode::kOutOfRange);
  fleet_->SetNotReady(0, WorkerState::kLost, "restarts");
  fleet_->SetNotReady(3, WorkerState::kLost, "restarts");
  for (const absl::Status& status : {place(3000), queue_->RankDecode(ticket, {3000}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("restarts"));
  }
  EXPECT_EQ(place(3001).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(queue_->RankDecode(ticket, {3001}).status().code(), absl::StatusCode::kOutOfRange);
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

TEST_F(FleetTest, AnInterruptedWorkerGetsNothingNewAndKeepsWhatItHas) {
  Make(10);
  const auto worker = Worker(0);
  fleet_->SetReady(worker);
  const FleetQueue::Ticket first(*queue_), second(*queue_);
  EXPECT_TRUE(Acquire(first).ok());
  const uint64_t returns = queue_->returns();
  fleet_->SetInterrupted(0, true);
  EXPECT_EQ(fleet_->ready_prefill(), 0);
  const absl::Status refused = Acquire(second).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("is being resumed"));
  EXPECT_FALSE(fleet_->Idle(0)) << "the first one's job goes on";
  fleet_->SetInterrupted(0, false);
  EXPECT_NE(queue_->returns(), returns) << "those that waited for it are told";
  EXPECT_TRUE(Acquire(second).ok());
  fleet_->FinishJob(*worker, 0);
  fleet_->FinishJob(*worker, 1);
  EXPECT_TRUE(fleet_->Idle(0));
}

TEST_F(FleetTest, AWorkerThatIsLostWhileInterruptedComesBackAsAnyOther) {
  Make(10);
  fleet_->SetReady(Worker(0));
  fleet_->SetInterrupted(0, true);
  fleet_->SetNotReady(0, WorkerState::kLost, "gone");
  fleet_->SetInterrupted(0, false);
  EXPECT_EQ(fleet_->ready_prefill(), 0);
  fleet_->SetReady(Worker(0));
  EXPECT_EQ(fleet_->ready_prefill(), 1);
}

}  // namespace
}  // namespace runahead
