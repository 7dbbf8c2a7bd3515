// Prompts that overtake others: at a worker, and in the queue for a place.
#include <future>
#include <string>
#include <vector>

#include "tests/server/router/fleet_fixture.h"

namespace runahead {
namespace {

// One prefill worker; a token takes a millisecond. Two prompts of 1,000 have its places: the first bears 0.25 s, the
// second 0.5 s, for the first goes before it.
class FleetTurnsTest : public testing::FleetTest {
 protected:
  FleetTurnsTest() {
    Make(10);
    fleet_->SetReady(worker_);
    computed_ = Place(Come(), 1000)->number;
    behind_ = Place(Come(), 1000)->number;
  }
  ~FleetTurnsTest() override { tickets_.clear(); }

  const FleetQueue::Ticket& Come(const std::string& tenant = "") {
    tickets_.push_back(std::make_unique<FleetQueue::Ticket>(*queue_, Claim{.tenant = tenant, .tokens = 1000}));
    return *tickets_.back();
  }
  absl::StatusOr<Placement> Place(const FleetQueue::Ticket& ticket, int64_t tokens) {
    absl::StatusOr<Placement> placement =
        RunHere(queue_->Acquire(ticket, {.tokens = tokens, .parts = {}}, times_, cancel_, absl::InfiniteFuture(), {}));
    if (placement.ok()) queue_->Settled(ticket);
    return placement;
  }
  // Without waiting; DEADLINE_EXCEEDED where it would have to.
  absl::StatusOr<Placement> PlaceNow(const FleetQueue::Ticket& ticket, int64_t tokens) {
    return RunHere(queue_->Acquire(ticket, {.tokens = tokens, .parts = {}}, times_, cancel_, clock_.Now(), {}));
  }
  // Waits in the queue once this returns, as the `place`th of them.
  std::future<absl::StatusOr<Placement>> Wait(const FleetQueue::Ticket& ticket, int64_t tokens, int place) {
    auto waits = std::async(std::launch::async, [this, &ticket, tokens] { return Place(ticket, tokens); });
    clock_.AwaitWaiters(place);
    return waits;
  }
  double ExpectS(int64_t tokens) {
    const FleetQueue::Ticket ticket(*queue_);
    return absl::ToDoubleSeconds(queue_->ExpectFirstToken(ticket, {.tokens = tokens, .parts = {}}, times_, false));
  }
  void Finish(uint64_t placement) { fleet_->FinishJob(*worker_, placement); }
  double Overtaken() const {
    const std::string page = registry_.Serialize(), name = "\nrunahead_overtaken_requests_total ";
    return std::stod(page.substr(page.find(name) + name.size()));
  }

  const PartitionTable times_ = *PartitionTable::Create({{1, 10, {1}, 0.01}, {1, 1000, {1}, 1.0}});
  const std::shared_ptr<LiveWorker> worker_ = Worker(0);
  std::vector<std::unique_ptr<FleetQueue::Ticket>> tickets_;
  uint64_t computed_ = 0, behind_ = 0;
};

TEST_F(FleetTurnsTest, SeveralGoBetweenLayersAsFarAsAllBearIt) {
  auto waits = Wait(Come(), 1000, 1);
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<Placement> between = Place(Come(), 100);
    ASSERT_TRUE(between.ok());
    EXPECT_TRUE(between->plan.overtakes);
    EXPECT_EQ(between->overtaken, 2u);
  }
  EXPECT_EQ(Overtaken(), 6) << "both that the worker has, and the one that waits";
  // The computed one bears 0.05 s more, the one behind it 0.3.
  const absl::StatusOr<Placement> next = Place(Come(), 200);
  ASSERT_TRUE(next.ok());
  EXPECT_TRUE(next->plan.overtakes);
  EXPECT_EQ(next->overtaken, 1u);
  EXPECT_DOUBLE_EQ(absl::ToDoubleSeconds(next->first_token_in), 1.4) << "when the computed one is over";
  auto later = Wait(Come(), 400, 2);
  Finish(computed_);
  EXPECT_EQ(waits.get()->plan.overtakes, false) << "it bears 0.75 s, and 0.4 were taken";
  Finish(behind_);
  EXPECT_EQ(later.get()->plan.overtakes, false);
}

// What the worker's two bear is used up by two of 100: the one that is computed bears 0.05 s more, the other 0.3 s.
class FleetPlaceTest : public FleetTurnsTest {
 protected:
  void UseUp() {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(Place(Come("short"), 100)->plan.overtakes);
  }
};

TEST_F(FleetPlaceTest, AShorterPromptHasThePlaceOfALongerOneThatBearsIt) {
  auto longer = Wait(Come(), 1000, 1);  // bears 0.75 s, and 0.55 after this
  UseUp();
  auto shorter = Wait(Come(), 450, 2);
  auto last = Wait(Come(), 400, 3);  // the longer one bears only one of the two
  Finish(computed_);
  const absl::StatusOr<Placement> first = shorter.get();
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->plan.overtakes);
  EXPECT_EQ(Overtaken(), 2 * 3 + 1);
  Finish(behind_);
  EXPECT_TRUE(longer.get().ok());
  Finish(first->number);
  EXPECT_TRUE(last.get().ok());
}

TEST_F(FleetPlaceTest, APlaceStaysWithTheTenantWhoseTurnItIs) {
  auto longer = Wait(Come("one"), 1000, 1);
  auto other = Wait(Come("other"), 900, 2);
  UseUp();
  auto shorter = Wait(Come("one"), 400, 3);
  auto others = Wait(Come("other"), 350, 4);
  Finish(computed_);
  const absl::StatusOr<Placement> first = shorter.get();
  ASSERT_TRUE(first.ok());
  Finish(behind_);
  EXPECT_TRUE(longer.get().ok());
  Finish(first->number);
  EXPECT_TRUE(others.get().ok());
  cancel_.Cancel(absl::CancelledError("enough"));
  EXPECT_TRUE(absl::IsCancelled(other.get().status()));
}

TEST_F(FleetTurnsTest, AnOvertakersTurnIsThatOfWhomItOvertook) {
  auto longer = Wait(Come("busy"), 1000, 1);
  auto last = Wait(Come("busy"), 900, 2);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Place(Come("busy"), 50).ok());
  auto fresh = Wait(Come("fresh"), 900, 3);
  Finish(computed_);
  EXPECT_TRUE(longer.get().ok());
  Finish(behind_);
  const absl::StatusOr<Placement> second = fresh.get();
  ASSERT_TRUE(second.ok()) << "it does not wait behind all that were overtaken";
  Finish(second->number);
  EXPECT_TRUE(last.get().ok());
}

TEST_F(FleetPlaceTest, AFirstTokenIsExpectedByTheNewOrder) {
  queue_->PrefillTook(1000, 1, absl::Seconds(1));
  auto waits = Wait(Come(), 1000, 1);
  EXPECT_EQ(ExpectS(100), 0) << "at once, between layers";
  UseUp();
  EXPECT_DOUBLE_EQ(ExpectS(450), 1.65) << "before the one that waits, behind the computed one";
  EXPECT_DOUBLE_EQ(ExpectS(800), 3) << "which does not bear this one";
  Finish(computed_);
  EXPECT_TRUE(waits.get().ok());
}

TEST_F(FleetPlaceTest, OneThatBearsNoMoreIsExpectedToGoFirstAndNoOther) {
  queue_->PrefillTook(1000, 1, absl::Seconds(1));
  auto used_up = Wait(Come(), 1000, 1);
  UseUp();
  auto first = Wait(Come(), 450, 2);
  Finish(computed_);
  const absl::StatusOr<Placement> overtook = first.get();
  ASSERT_TRUE(overtook.ok());
  auto bears = Wait(Come(), 1000, 2);
  EXPECT_DOUBLE_EQ(ExpectS(300), 3.5) << "of the two that wait only the first does not bear it";
  EXPECT_DOUBLE_EQ(ExpectS(800), 5) << "neither bears this one";
  Finish(behind_);
  EXPECT_TRUE(used_up.get().ok());
  Finish(overtook->number);
  EXPECT_TRUE(bears.get().ok());
}

TEST_F(FleetTurnsTest, WhoWaitedForWorkersIsOvertakenAsFarAsItBears) {
  const FleetQueue::Ticket& away = Come();
  auto returned = std::async(std::launch::async, [&, returns = queue_->returns()] {
    return *RunHere(queue_->AwaitReturn(away, {.tokens = 1000, .parts = {}}, WorkerRole::kPrefill, returns,
                                        absl::Hours(1), absl::Hours(1), cancel_, absl::InfiniteFuture()));
  });
  clock_.AwaitWaiters(1);
  fleet_->SetReady(Worker(1));
  EXPECT_TRUE(returned.get());
  EXPECT_TRUE(PlaceNow(Come(), 400).ok());
  EXPECT_FALSE(PlaceNow(Come(), 600).ok()) << "it takes more than half as long";
}

TEST_F(FleetTurnsTest, WhatIsNotKnownIsJudgedAnewOnceItIs) {
  const auto untimed = [&](int64_t tokens, int place) {
    auto waits = std::async(std::launch::async, [this, &ticket = Come(), tokens] {
      return RunHere(queue_->Acquire(ticket, {.tokens = tokens, .parts = {}}, PartitionTable(), cancel_,
                                     absl::InfiniteFuture(), {}));
    });
    clock_.AwaitWaiters(place);
    return waits;
  };
  auto longer = untimed(1000, 1);
  queue_->PrefillTook(1000, 1, absl::Minutes(10));
  auto shorter = untimed(100, 2);  // takes a minute
  Finish(computed_);
  Finish(behind_);
  EXPECT_LT(shorter.get()->number, longer.get()->number);
}

TEST_F(FleetTurnsTest, WhoFindsNoWorkerToOvertakeOnKeepsNoOtherFromIt) {
  auto longer = Wait(Come("one"), 1000, 1);
  const FleetQueue::Ticket& avoids = Come("other");
  queue_->Avoid(avoids, worker_->index);
  auto waits = Wait(avoids, 50, 2);
  EXPECT_TRUE(PlaceNow(Come("third"), 20).ok());
  cancel_.Cancel(absl::CancelledError("enough"));
  EXPECT_TRUE(absl::IsCancelled(waits.get().status()));
  EXPECT_TRUE(absl::IsCancelled(longer.get().status()));
}

TEST_F(FleetTurnsTest, WhoIsNotComputedGivesBackWhatItTookOfOthers) {
  auto longer = Wait(Come(), 1000, 1);  // bears 0.75 s
  for (int i = 0; i < 5; ++i) {
    const FleetQueue::Ticket gives_up(*queue_);
    const absl::StatusOr<Placement> between = PlaceNow(gives_up, 200);
    ASSERT_TRUE(between.ok()) << i;
    fleet_->WithdrawJob(*worker_, between->number);
  }
  Finish(computed_);
  EXPECT_TRUE(longer.get().ok());
}

}  // namespace
}  // namespace runahead
