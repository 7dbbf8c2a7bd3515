#include "server/router/worker_connection.h"

#include <atomic>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "server/rpc/own_echo.h"
#include "tests/server/router/kept_news.h"
#include "tests/testing/busy_callbacks.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_worker.h"

namespace runahead {
namespace {

using testing::BusyCallbacks;
using testing::FakeBehaviour;
using testing::FakeClock;
using testing::FakeWorker;
using ::testing::HasSubstr;
using testing::KeptNews;

v1::Capabilities Able() {
  return FakeWorker::Able("p0", {v1::WORKER_ROLE_PREFILL}, "f", 100);
}

TEST(WorkerConnection, ASilentWorkerIsLostAfterThreeSecondsAndJoinedAgain) {
  FakeWorker worker(Able());
  KeptNews owner;
  FakeClock clock;
  WorkerConnection connection(0, {"prefill", worker.address()}, 42, owner, clock);
  owner.AwaitJoined(1);
  EXPECT_EQ(worker.router_incarnation(), 42u);
  worker.Change([](FakeBehaviour& b) { b.pong = false; });
  while (owner.left() == 0) {  // in steps that are no pause of the router's
    clock.AwaitWaiters(1);
    clock.Advance(absl::Milliseconds(100));
  }
  const auto [state, why] = owner.AwaitLeft(1);
  EXPECT_EQ(state, WorkerState::kLost);
  EXPECT_THAT(why.message(), HasSubstr("no sign of life for 3s"));
  worker.Change([](FakeBehaviour& b) { b.pong = true; });
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(1));
  owner.AwaitJoined(2);
}

TEST(WorkerConnection, LearnsTheWorkersClockAndThatOfItsNextLifeAnew) {
  FakeWorker worker(Able());
  KeptNews owner;
  FakeClock clock;
  WorkerConnection connection(0, {"prefill", worker.address()}, 42, owner, clock);
  owner.AwaitJoined(1);
  const auto ahead = [&] {
    const auto estimate = owner.live()->clock->At(clock.Now());
    EXPECT_TRUE(estimate.has_value()) << "it was asked before it joined";
    return estimate ? absl::Nanoseconds(estimate->offset) : absl::ZeroDuration();
  };
  EXPECT_LT(absl::AbsDuration(MonotonicNow() - clock.Now() - ahead()), absl::Minutes(1));
  worker.Change([](FakeBehaviour& b) { b.clock_ahead = absl::Hours(5); });
  worker.DropStream();
  owner.AwaitLeft(1);
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(1));
  owner.AwaitJoined(2);
  EXPECT_LT(absl::AbsDuration(MonotonicNow() + absl::Hours(5) - clock.Now() - ahead()), absl::Minutes(1));
}

TEST(WorkerConnection, APauseOfTheRouterIsNotHeldAgainstTheWorker) {
  FakeWorker worker(Able());
  KeptNews owner;
  FakeClock clock;
  WorkerConnection connection(0, {"prefill", worker.address()}, 42, owner, clock);
  owner.AwaitJoined(1);
  uint64_t ping = 0;
  for (const int seconds : {4, 60}) {
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(seconds));
    ASSERT_TRUE(owner.AwaitPong(++ping)) << "it is asked anew at once";
  }
  worker.DropStream();
  EXPECT_THAT(owner.AwaitLeft(1).second.message(), ::testing::Not(HasSubstr("sign of life")));
}

// Has gRPC's threads back where the worker is given up: the end of its stream comes over them.
class FreesCallbacks final : public KeptNews {
 public:
  void Hold(BusyCallbacks& busy) { busy_ = &busy; }
  void Left(int index, WorkerState state, const absl::Status& why) override {
    KeptNews::Left(index, state, why);
    if (BusyCallbacks* const busy = busy_) busy->Free();
  }

 private:
  std::atomic<BusyCallbacks*> busy_ = nullptr;
};

// Was: "no sign of life for 3s", of all workers, when strangers sent the router 50,000 calls and others had the cores.
TEST(WorkerConnection, ThatTheRouterIsBehindWithReadingIsNotHeldAgainstTheWorker) {
  FakeWorker worker(Able());
  FreesCallbacks owner;
  FakeClock clock;
  const std::unique_ptr<OwnEcho> hearing = *OwnEcho::Create();
  std::unique_ptr<BusyCallbacks> busy;  // outlives the connection
  WorkerConnection connection(0, {"prefill", worker.address()}, 42, owner, clock, {}, *hearing);
  owner.AwaitJoined(1);
  busy = std::make_unique<BusyCallbacks>();
  owner.Hold(*busy);
  for (int look = 0; look < 110; ++look) {
    clock.AwaitWaiters(1);
    clock.Advance(Silence::kLookPeriod);
  }
  clock.AwaitWaiters(1);
  EXPECT_EQ(owner.left(), 0u);
  busy->Free();
  EXPECT_TRUE(owner.AwaitPong(1));
  EXPECT_EQ(owner.left(), 0u);
}

TEST(WorkerConnection, ASilentWorkerIsLostByARouterThatAsksItself) {
  FakeWorker worker(Able());
  KeptNews owner;
  FakeClock clock;
  const std::unique_ptr<OwnEcho> hearing = *OwnEcho::Create();
  WorkerConnection connection(0, {"prefill", worker.address()}, 42, owner, clock, {}, *hearing);
  owner.AwaitJoined(1);
  worker.Change([](FakeBehaviour& b) { b.pong = false; });
  while (owner.left() == 0) {
    clock.AwaitWaiters(1);
    clock.Advance(Silence::kLookPeriod);
  }
  EXPECT_THAT(owner.AwaitLeft(1).second.message(), HasSubstr("no sign of life for 3s"));
}

TEST(WorkerConnection, AWorkerThatAnswersPingsStays) {
  FakeWorker worker(Able());
  KeptNews owner;
  FakeClock clock;
  WorkerConnection connection(0, {"prefill", worker.address()}, 42, owner, clock);
  owner.AwaitJoined(1);
  for (uint64_t ping = 1; ping <= 20; ++ping) {
    clock.AwaitWaiters(1);
    clock.Advance(kPingPeriod);
    ASSERT_TRUE(owner.AwaitPong(ping));
  }
  worker.DropStream();
  EXPECT_THAT(owner.AwaitLeft(1).second.message(), ::testing::Not(HasSubstr("sign of life")));
}

TEST(WorkerConnection, TriesAgainWithinASecondUntilTheWorkerIsThere) {
  auto worker = std::make_unique<FakeWorker>(Able());
  const std::string address = worker->address();
  worker.reset();
  KeptNews owner;
  FakeClock clock;
  WorkerConnection connection(0, {"prefill", address}, 42, owner, clock);
  for (size_t attempt = 1; attempt <= 6; ++attempt) {
    EXPECT_EQ(owner.AwaitLeft(attempt).first, WorkerState::kConnecting);
    clock.AwaitWaiters(1);
    if (attempt == 6) worker = std::make_unique<FakeWorker>(Able(), address);
    clock.Advance(absl::Seconds(1));
  }
  owner.AwaitJoined(1);
}

TEST(WorkerConnection, SaysThatAWorkerWasRefused) {
  FakeWorker worker(Able());
  KeptNews owner;
  FakeClock clock;
  owner.Refuse(absl::FailedPreconditionError("another model"));
  WorkerConnection connection(0, {"prefill", worker.address()}, 42, owner, clock);
  EXPECT_EQ(owner.AwaitLeft(1).first, WorkerState::kRefused);
  owner.Refuse(absl::OkStatus());
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(1));
  owner.AwaitJoined(1);
}

TEST(WorkerConnection, ASecondRouterIsRefused) {
  FakeWorker worker(Able());
  KeptNews first, second;
  FakeClock clock, other_clock;
  WorkerConnection connection(0, {"prefill", worker.address()}, 1, first, clock);
  first.AwaitJoined(1);
  WorkerConnection other(0, {"prefill", worker.address()}, 2, second, other_clock);
  EXPECT_EQ(second.AwaitLeft(1).first, WorkerState::kRefused);
  EXPECT_THAT(second.AwaitLeft(1).second.message(), HasSubstr("another router"));
  EXPECT_EQ(worker.router_incarnation(), 1u);
}

}  // namespace
}  // namespace runahead
