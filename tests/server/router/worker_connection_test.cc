#include "server/router/worker_connection.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_worker.h"

namespace runahead {
namespace {

using testing::FakeBehaviour;
using testing::FakeClock;
using testing::FakeWorker;
using ::testing::HasSubstr;

// Keeps what a connection tells.
class KeptNews : public WorkerConnection::Owner {
 public:
  absl::Status Admit(int, const v1::Capabilities&) override {
    MutexLock lock(mu_);
    return admit_;
  }
  void Joined(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<CommandSink>) override {
    MutexLock lock(mu_);
    joined_.push_back(worker->capabilities.incarnation());
    live_ = worker;
    changed_.NotifyAll();
  }
  void Report(int, const v1::ControlReport& report) override {
    MutexLock lock(mu_);
    last_pong_ = report.pong().number();
    changed_.NotifyAll();
  }
  void Suspected(int, bool) override {}
  void Left(int, WorkerState state, const absl::Status& why) override {
    MutexLock lock(mu_);
    left_.emplace_back(state, why);
    changed_.NotifyAll();
  }

  void Refuse(absl::Status why) {
    MutexLock lock(mu_);
    admit_ = std::move(why);
  }
  uint64_t AwaitJoined(size_t count) {
    MutexLock lock(mu_);
    if (!Await([&]() RUNAHEAD_REQUIRES(mu_) { return joined_.size() >= count; })) return 0;
    return joined_[count - 1];
  }
  bool AwaitPong(uint64_t number) {
    MutexLock lock(mu_);
    return Await([&]() RUNAHEAD_REQUIRES(mu_) { return last_pong_ >= number; });
  }
  std::shared_ptr<const LiveWorker> live() {
    MutexLock lock(mu_);
    return live_;
  }
  size_t left() {
    MutexLock lock(mu_);
    return left_.size();
  }
  std::pair<WorkerState, absl::Status> AwaitLeft(size_t count) {
    MutexLock lock(mu_);
    if (!Await([&]() RUNAHEAD_REQUIRES(mu_) { return left_.size() >= count; })) return {};
    return left_[count - 1];
  }

 private:
  // False, and a failure of the test, when it waits in vain.
  template <typename Condition>
  bool Await(const Condition& condition) RUNAHEAD_REQUIRES(mu_) {
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (!condition()) {
      if (absl::Now() >= until) {
        ADD_FAILURE() << "waited in vain: " << joined_.size() << " joined, " << left_.size() << " left"
                      << (left_.empty() ? "" : ", the last by " + left_.back().second.ToString());
        return false;
      }
      changed_.WaitFor(mu_, until - absl::Now());
    }
    return true;
  }

  Mutex mu_;
  CondVar changed_;
  absl::Status admit_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t last_pong_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> joined_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<const LiveWorker> live_ RUNAHEAD_GUARDED_BY(mu_);  // that joined last
  std::vector<std::pair<WorkerState, absl::Status>> left_ RUNAHEAD_GUARDED_BY(mu_);
};

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
