#include "server/router/session.h"

#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/task/run_here.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using testing::FakeBehaviour;
using testing::FakeClock;

class SessionTest : public testing::RouterFixture {
 protected:
  // Calls `on_started` on the session's thread when the chain has its work.
  class Sink final : public ResponseSink {
   public:
    explicit Sink(std::function<void()> on_started) : on_started_(std::move(on_started)) {}
    void Send(v1::GenerateResponse response) override {
      if (response.has_started()) on_started_();
    }

   private:
    const std::function<void()> on_started_;
  };
};

TEST_F(SessionTest, AWorkersFailureAfterTheDeadlineIsTheDeadlines) {
  Start();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  Sink sink([this] {
    const uint64_t job = prefill_[0]->AwaitStarts(1).at(0).job();
    prefill_[0]->SendDone(job, absl::UnavailableError("the job was dropped on an edge"));
    prefill_[1]->AwaitCancel(job);  // so the router knows of the failure
  });
  v1::GenerateRequest request = Ids(10, 1);
  request.mutable_experiment()->set_width(2);
  CancelToken cancel;
  const absl::Time now = RealClock().Now();
  EXPECT_EQ(RunHere(Session(*parts_, request, now, now, cancel, sink).Run()).code(),
            absl::StatusCode::kDeadlineExceeded);
}

// Does something when it is read for the fourth time: the session reads it once at its begin, then now and then while
// it tokenizes.
class InterruptingClock final : public testing::FakeClock {
 public:
  explicit InterruptingClock(std::function<void(InterruptingClock&)> what) : what_(std::move(what)) {}
  absl::Time Now() const override {
    if (++looks_ == 4) what_(const_cast<InterruptingClock&>(*this));
    return FakeClock::Now();
  }
  int looks() const { return looks_; }

 private:
  const std::function<void(InterruptingClock&)> what_;
  mutable std::atomic<int> looks_ = 0;
};

TEST_F(SessionTest, ALongTextIsTokenizedNoLongerThanItsCallLasts) {
  Start();
  std::string text;
  while (text.size() < (1 << 20)) text += "ab ";
  v1::GenerateRequest prompt = Prompt(text, 1), chat = Prompt("", 1);
  v1::ChatMessage& message = *chat.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content(text);
  for (const v1::GenerateRequest& request : {prompt, chat}) {
    CancelToken cancel;
    const absl::Status gone = absl::CancelledError("the client went away");
    InterruptingClock cancelling([&](auto&) { cancel.Cancel(gone); });
    InterruptingClock passing([&](auto& clock) { clock.Advance(absl::Seconds(2)); });
    Sink sink([] {});
    const auto run = [&](InterruptingClock& clock) {
      const RouterParts parts{*fleet_,    *queue_,        *sequencer_, *metrics_,      clock, model_,
                              tokenizer_, chat_template_, table_,      Schedule::kKvr, true};
      const absl::Time now = absl::UnixEpoch();
      return RunHere(Session(parts, request, now, now + absl::Seconds(1), cancel, sink).Run());
    };
    EXPECT_EQ(run(passing), absl::DeadlineExceededError("the deadline passed while the prompt was tokenized"));
    EXPECT_EQ(passing.looks(), 4);
    EXPECT_EQ(run(cancelling), gone);
    EXPECT_EQ(cancelling.looks(), 4);
  }
}

TEST_F(SessionTest, ARenewalThatIsNotAnsweredIsAskedAgainAndEndsNothing) {
  Start();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  FakeClock clock;
  const RouterParts parts{*fleet_,    *queue_,        *sequencer_, *metrics_,      clock, model_,
                          tokenizer_, chat_template_, table_,      Schedule::kKvr, true};
  Sink sink([] {});
  CancelToken cancel;
  v1::GenerateRequest request = Ids(10, 5);
  request.mutable_experiment()->set_width(2);
  auto answer = std::async(std::launch::async, [&] {
    return RunHere(Session(parts, request, clock.Now(), absl::InfiniteFuture(), cancel, sink).Run());
  });
  const uint64_t job = prefill_[0]->AwaitStarts(1).at(0).job();
  decode_[0]->Change([](FakeBehaviour& b) { b.answers_leases = false; });
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(10));
  for (int unanswered = 1; unanswered <= 3; ++unanswered) {
    decode_[0]->AwaitUnanswered(unanswered);
    for (int look = 0; look < 10; ++look) {
      clock.AwaitWaiters(1);
      clock.Advance(absl::Milliseconds(100));
    }
  }
  decode_[0]->Change([](FakeBehaviour& b) { b.answers_leases = true; });
  prefill_[1]->SendFirstToken(job, 100);
  for (auto& worker : prefill_) worker->SendDone(job);
  EXPECT_EQ(answer.get(), absl::OkStatus());
}

TEST(StartJobsTest, NoWorkersDeadlineIsBeforeTheRouters) {
  const std::vector<int32_t> ids = {1, 2, 3};
  Placement placement;
  placement.plan.parts = {2, 1};
  placement.chain = {std::make_shared<LiveWorker>(), std::make_shared<LiveWorker>()};
  PrefillOrder order;
  order.ids = ids;
  order.time_left = absl::Microseconds(2001);
  for (const v1::StartJob& job : StartJobs(order, placement)) EXPECT_EQ(job.deadline_ms(), 3);
  order.time_left = absl::Seconds(-1);
  for (const v1::StartJob& job : StartJobs(order, placement)) EXPECT_EQ(job.deadline_ms(), 1);
}

TEST(StartJobsTest, EachMemberIsToldWhoIsBeforeAndAfterIt) {
  const std::vector<int32_t> ids = {1, 2, 3};
  Placement placement;
  placement.plan.parts = {1, 1, 1};
  for (uint64_t i = 0; i < 3; ++i) {
    auto worker = std::make_shared<LiveWorker>();
    worker->capabilities.set_incarnation(70 + i);
    worker->capabilities.set_epoch(static_cast<uint32_t>(i));
    placement.chain.push_back(worker);
  }
  PrefillOrder order;
  order.ids = ids;
  const std::vector<v1::StartJob> jobs = StartJobs(order, placement);
  EXPECT_FALSE(jobs[0].has_predecessor());
  EXPECT_EQ(jobs[0].successor().incarnation(), 71u);
  EXPECT_EQ(jobs[0].successor().epoch(), 1u);
  EXPECT_EQ(jobs[1].predecessor().incarnation(), 70u);
  EXPECT_EQ(jobs[1].successor().incarnation(), 72u);
  EXPECT_EQ(jobs[1].successor().epoch(), 2u);
  EXPECT_EQ(jobs[2].predecessor().epoch(), 1u);
  EXPECT_FALSE(jobs[2].has_successor());
}

}  // namespace
}  // namespace runahead
