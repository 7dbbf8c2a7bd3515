// Requests that are placed anew, for their workers were lost: they keep the turns that they had.
#include <coroutine>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "server/task/run_here.h"
#include "tests/server/router/fleet_fixture.h"

namespace runahead {
namespace {

// Runs on the test's thread, when it is told to: what waits then waits for something that has not happened.
class StepExecutor final : public Executor {
 public:
  void Post(std::coroutine_handle<> ready) override { ready_.push_back(ready); }
  void Run() {
    while (!ready_.empty()) {
      const std::coroutine_handle<> next = ready_.front();
      ready_.pop_front();
      next.resume();
    }
  }

 private:
  std::deque<std::coroutine_handle<>> ready_;
};

// All of 1,000 tokens: they share no place, and none bears another.
class KeptTurnsTest : public testing::FleetTest {
 protected:
  struct Request {
    explicit Request(FleetQueue& queue) : ticket(queue, Claim{.tokens = 1000}) {}
    const FleetQueue::Ticket ticket;
    std::optional<absl::StatusOr<Placement>> got;  // nothing while it waits for a place
    std::optional<absl::StatusOr<bool>> returned;  // nothing while it waits for workers to come back
    bool placed() const { return got.has_value() && got->ok(); }
  };

  // Those that wait end before their tickets go.
  ~KeptTurnsTest() override {
    cancel_.Cancel(absl::CancelledError("the test is over"));
    executor_.Run();
    requests_.clear();
  }

  Request& Come() {
    requests_.push_back(std::make_unique<Request>(*queue_));
    return *requests_.back();
  }
  void Acquire(Request& request) {
    request.got.reset();
    KeepResult(queue_->Acquire(request.ticket, kPrompt, times_, cancel_, absl::InfiniteFuture(), {}), request.got)
        .Begin(executor_);
    Run();
  }
  // As a session does that found no worker.
  void AwaitReturn(Request& request) {
    request.returned.reset();
    KeepResult(queue_->AwaitReturn(request.ticket, kPrompt, WorkerRole::kPrefill, queue_->returns(), absl::Hours(1),
                                   absl::Hours(1), cancel_, absl::InfiniteFuture()),
               request.returned)
        .Begin(executor_);
    Run();
  }
  // A request that has its place and all else.
  Request& Placed() {
    Request& request = Come();
    Acquire(request);
    EXPECT_TRUE(request.placed());
    if (request.placed()) queue_->Settled(request.ticket);
    return request;
  }
  void Finish(const Request& request) {
    ASSERT_TRUE(request.placed());
    const Placement& placement = **request.got;
    fleet_->FinishJob(*placement.chain[0], placement.number);
    Run();
  }
  void Lose(int worker) {
    fleet_->SetNotReady(worker, WorkerState::kLost, "gone");
    Run();
  }
  void Return(int worker) {
    fleet_->SetReady(Worker(worker));
    Run();
  }
  void Run() { executor_.Run(); }

  const ChainRequest kPrompt{.tokens = 1000, .width = 1, .parts = {}};
  const PartitionTable times_{};
  StepExecutor executor_;
  std::vector<std::unique_ptr<Request>> requests_;
};

TEST_F(KeptTurnsTest, WhoIsPlacedAnewComesBeforeWhoCameLaterHoweverFullTheQueue) {
  Make(1);
  Return(0);
  Request& first = Placed();
  Lose(0);
  Return(1);
  const Request &one = Placed(), &other = Placed();  // they came later, and have the places
  Request& later = Come();
  Acquire(later);
  EXPECT_FALSE(later.got.has_value()) << "it waits, and the queue is full";
  Acquire(first);
  ASSERT_FALSE(first.got.has_value()) << first.got->status();
  Finish(one);
  EXPECT_TRUE(first.placed()) << "it came first";
  EXPECT_FALSE(later.got.has_value());
  Finish(other);
  EXPECT_TRUE(later.placed());
}

TEST_F(KeptTurnsTest, OnceAWorkerIsBackThoseThatWaitedForItAreServedInTheOrderOfTheirTickets) {
  Make(10);
  Return(0);
  Request &first = Placed(), &second = Placed(), &third = Come();
  Acquire(third);
  EXPECT_FALSE(third.got.has_value()) << "the worker has two places";
  Lose(0);
  ASSERT_TRUE(third.got.has_value());
  EXPECT_TRUE(absl::IsUnavailable(third.got->status())) << third.got->status();
  for (Request* request : {&third, &second, &first}) AwaitReturn(*request);
  for (const Request* request : {&first, &second, &third}) EXPECT_FALSE(request->returned.has_value());
  Return(0);
  for (const Request* request : {&first, &second, &third}) {
    ASSERT_TRUE(request->returned.has_value() && request->returned->ok());
    EXPECT_TRUE(**request->returned);
  }
  Request& newcomer = Come();
  for (Request* request : {&newcomer, &third, &second}) {
    Acquire(*request);
    ASSERT_FALSE(request->got.has_value()) << "both places are free, and the first one's turn has not passed";
  }
  Acquire(first);
  ASSERT_TRUE(first.placed());
  ASSERT_TRUE(second.placed());
  EXPECT_FALSE(third.got.has_value());
  Finish(second);
  EXPECT_TRUE(third.placed());
  EXPECT_FALSE(newcomer.got.has_value());
  Finish(first);
  EXPECT_TRUE(newcomer.placed());
}

}  // namespace
}  // namespace runahead
