#include "client/bench/load_run.h"

#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/await_change.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;

constexpr double kAtOnce = std::numeric_limits<double>::infinity();

// Keeps what it is asked for the test to answer.
class KeepingDoor final : public BenchDoor {
 public:
  void Ask(const BenchRequest& request, std::shared_ptr<AnswerHearer> hearer) override {
    {
      MutexLock lock(mu_);
      if (!cancelled_) {
        lengths_.push_back(request.max_tokens);
        hearers_.push_back(std::move(hearer));
        changed_.NotifyAll();
        return;
      }
    }
    hearer->OnEnd(absl::CancelledError("cancelled"), {});
  }
  void Cancel() override {
    std::vector<std::shared_ptr<AnswerHearer>> hearers;
    {
      MutexLock lock(mu_);
      cancelled_ = true;
      hearers = hearers_;
    }
    for (size_t i = ended_; i < hearers.size(); ++i) hearers[i]->OnEnd(absl::CancelledError("cancelled"), {});
  }

  // Waits for the request of this number.
  AnswerHearer& Asked(size_t number) {
    MutexLock lock(mu_);
    testing::ChangeWait wait("a request is sent");
    while (hearers_.size() <= number) {
      if (!wait.Next(mu_, changed_)) std::abort();
    }
    return *hearers_[number];
  }
  size_t asked() {
    MutexLock lock(mu_);
    return hearers_.size();
  }
  std::vector<int32_t> lengths() {
    MutexLock lock(mu_);
    return lengths_;
  }
  void SetEnded(size_t first) { ended_ = first; }  // those before `first` have been ended by the test

 private:
  Mutex mu_;
  CondVar changed_;
  bool cancelled_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<AnswerHearer>> hearers_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<int32_t> lengths_ RUNAHEAD_GUARDED_BY(mu_);
  size_t ended_ = 0;
};

class LoadRunTest : public ::testing::Test {
 protected:
  void Begin(const LoadOptions& options, double rate) {
    const auto source = [](int64_t number) {
      return BenchRequest{.ids = {1, 2, 3}, .max_tokens = int32_t(number) + 1};
    };
    thread_ =
        std::thread([this, options, rate, source] { outcome_ = run_.Run(options, source, PoissonArrivals(rate, 5)); });
  }
  LoadOutcome& End() {
    thread_.join();
    return outcome_;
  }
  void Answer(size_t number) {
    door_.Asked(number).OnTokens(1);
    door_.Asked(number).OnEnd(absl::OkStatus(), {});
  }

  FakeClock clock_;
  KeepingDoor door_;
  LoadRun run_{door_, clock_};
  LoadOutcome outcome_;
  std::thread thread_;
};

TEST_F(LoadRunTest, TimesAreTakenAsTokensCome) {
  Begin({.requests = 1}, kAtOnce);
  AnswerHearer& answer = door_.Asked(0);
  clock_.Advance(absl::Milliseconds(100));
  answer.OnTokens(1);
  clock_.Advance(absl::Milliseconds(20));
  answer.OnTokens(3);
  clock_.Advance(absl::Milliseconds(30));
  answer.OnTokens(1);
  clock_.Advance(absl::Milliseconds(5));
  answer.OnEnd(absl::OkStatus(), {.input_tokens = 9, .output_tokens = 6, .cached_tokens = 2});
  const LoadOutcome& outcome = End();
  ASSERT_EQ(outcome.records.size(), 1u);
  const BenchRecord& record = outcome.records[0];
  EXPECT_TRUE(record.status.ok());
  EXPECT_EQ(record.start, absl::ZeroDuration());
  EXPECT_EQ(record.ttft, absl::Milliseconds(100));
  EXPECT_THAT(record.itls, ElementsAre(absl::Milliseconds(20), absl::Milliseconds(30)));
  EXPECT_EQ(record.e2e, absl::Milliseconds(150));
  EXPECT_EQ(record.end, absl::Milliseconds(155));
  EXPECT_EQ(record.input_tokens, 9);
  EXPECT_EQ(record.output_tokens, 6);
  EXPECT_EQ(record.cached_tokens, 2);
  EXPECT_FALSE(record.counted_by_events);
}

TEST_F(LoadRunTest, TokensAreCountedWhereTheServerDoesNotSay) {
  Begin({.requests = 1}, kAtOnce);
  AnswerHearer& answer = door_.Asked(0);
  answer.OnTokens(1);
  answer.OnTokens(4);
  answer.OnEnd(absl::OkStatus(), {});
  const LoadOutcome& outcome = End();
  EXPECT_EQ(outcome.records[0].output_tokens, 5);
  EXPECT_EQ(outcome.records[0].input_tokens, 3) << "its ids";
  EXPECT_TRUE(outcome.records[0].counted_by_events);
}

TEST_F(LoadRunTest, AnAnswerWithoutATokenHasFailed) {
  Begin({.requests = 2, .concurrency = 2}, kAtOnce);
  door_.Asked(0).OnEnd(absl::OkStatus(), {.output_tokens = 1});
  door_.Asked(1).OnEnd(absl::UnavailableError("gone"), {});
  const LoadOutcome& outcome = End();
  EXPECT_TRUE(absl::IsInternal(outcome.records[0].status)) << outcome.records[0].status;
  EXPECT_EQ(outcome.records[1].status, absl::UnavailableError("gone"));
  EXPECT_EQ(run_.counts().failed, 2);
}

TEST_F(LoadRunTest, NoMoreAreUnderWayThanAllowed) {
  Begin({.requests = 4, .concurrency = 2}, kAtOnce);
  door_.Asked(1);
  clock_.AwaitWaiters(1);  // the run waits for an end
  EXPECT_EQ(door_.asked(), 2u);
  clock_.Advance(absl::Seconds(1));
  Answer(1);
  door_.Asked(2);
  Answer(0);
  door_.Asked(3);
  Answer(2);
  Answer(3);
  const LoadOutcome& outcome = End();
  EXPECT_EQ(outcome.peak, 2);
  ASSERT_EQ(outcome.records.size(), 4u);
  EXPECT_EQ(outcome.records[2].start, absl::Seconds(1)) << "without a rate, a request starts when it is sent";
  EXPECT_EQ(outcome.records[2].late, absl::ZeroDuration());
  EXPECT_FALSE(outcome.records[2].held);
  EXPECT_THAT(door_.lengths(), ElementsAre(1, 2, 3, 4));
}

TEST_F(LoadRunTest, WithARateTimesCountFromThePlannedStart) {
  PoissonArrivals same(1, 5);
  const absl::Duration first = same.Next(), second = same.Next(), third = same.Next();
  ASSERT_EQ(first, absl::ZeroDuration());
  Begin({.requests = 3, .concurrency = 9, .planned = true}, 1);
  door_.Asked(0);
  clock_.AwaitWaiters(1);
  EXPECT_EQ(door_.asked(), 1u);
  clock_.Advance(second);
  door_.Asked(1);
  clock_.AwaitWaiters(1);
  const absl::Duration late = absl::Milliseconds(50);
  clock_.Advance(third - second + late);
  door_.Asked(2).OnTokens(1);
  door_.Asked(2).OnEnd(absl::OkStatus(), {});
  Answer(0);
  Answer(1);
  const LoadOutcome& outcome = End();
  EXPECT_EQ(outcome.records[1].start, second);
  EXPECT_EQ(outcome.records[1].late, absl::ZeroDuration());
  EXPECT_EQ(outcome.records[2].start, third);
  EXPECT_EQ(outcome.records[2].late, late);
  EXPECT_EQ(outcome.records[2].ttft, late) << "who waits for the tool waits";
  EXPECT_FALSE(outcome.records[2].held);
}

TEST_F(LoadRunTest, WhoStandsBehindOneThatIsHeldIsHeldToo) {
  PoissonArrivals same(1, 5);
  same.Next();
  same.Next();
  const absl::Duration third = same.Next(), fourth = same.Next();
  Begin({.requests = 4, .concurrency = 2, .planned = true}, 1);
  door_.Asked(0);
  clock_.AwaitWaiters(1);
  clock_.Advance(third);
  door_.Asked(1);
  clock_.AwaitWaiters(1);  // the third one's time has come, and it waits for a place
  clock_.Advance(fourth - third + absl::Seconds(1));
  Answer(0);
  Answer(1);
  Answer(2);
  Answer(3);
  const LoadOutcome& outcome = End();
  for (const size_t number : {2, 3}) {
    EXPECT_TRUE(outcome.records[number].held) << number;
    EXPECT_GT(outcome.records[number].late, absl::ZeroDuration()) << number;
  }
  EXPECT_FALSE(outcome.records[0].held || outcome.records[1].held);
}

TEST_F(LoadRunTest, WhoIsHeldByTheConcurrencySaysSo) {
  PoissonArrivals same(1, 5);
  same.Next();
  const absl::Duration second = same.Next();
  Begin({.requests = 2, .concurrency = 1, .planned = true}, 1);
  door_.Asked(0);
  clock_.AwaitWaiters(1);
  clock_.Advance(second);
  clock_.AwaitWaiters(1);  // for the first one's end
  clock_.Advance(absl::Seconds(3));
  clock_.AwaitWaiters(1);
  Answer(0);
  Answer(1);
  const LoadOutcome& outcome = End();
  EXPECT_TRUE(outcome.records[1].held);
  EXPECT_EQ(outcome.records[1].start, second);
  EXPECT_EQ(outcome.records[1].late, absl::Seconds(3));
  EXPECT_EQ(outcome.records[1].ttft, absl::Seconds(3));
}

TEST_F(LoadRunTest, AfterItsDurationNothingIsSentAndAllEndsAreAwaited) {
  Begin({.requests = 10, .concurrency = 1, .duration = absl::Seconds(5)}, kAtOnce);
  door_.Asked(0);
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(6));
  Answer(0);
  const LoadOutcome& outcome = End();
  EXPECT_EQ(outcome.records.size(), 1u);
  EXPECT_EQ(outcome.unsent, 9);
  EXPECT_TRUE(outcome.records[0].status.ok());
}

TEST_F(LoadRunTest, StopCancelsWhatIsUnderWayAndSendsNothingMore) {
  Begin({.requests = 10, .concurrency = 3}, kAtOnce);
  Answer(0);
  door_.Asked(3);
  door_.Asked(1).OnEnd(absl::UnavailableError("gone"), {});
  door_.Asked(4);
  door_.SetEnded(2);
  run_.Stop();
  const LoadOutcome& outcome = End();
  ASSERT_GE(outcome.records.size(), 5u);
  EXPECT_TRUE(outcome.records[0].status.ok());
  EXPECT_FALSE(outcome.records[1].interrupted) << "it had failed before";
  EXPECT_TRUE(outcome.records[2].interrupted);
  EXPECT_TRUE(outcome.records[4].interrupted);
  EXPECT_EQ(outcome.unsent + int64_t(outcome.records.size()), 10);
  EXPECT_EQ(run_.counts().failed, 1);
  EXPECT_EQ(run_.Run(
                    {.requests = 3}, [](int64_t) { return BenchRequest{}; }, PoissonArrivals(kAtOnce, 1))
                .unsent,
            3);
}

}  // namespace
}  // namespace runahead
