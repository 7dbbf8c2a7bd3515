// Requests that have no token yet go on with other workers, or wait for those that are away for a moment.
#include "server/router/failover.h"

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "gmock/gmock.h"
#include "server/rpc/status.h"
#include "server/task/run_here.h"
#include "tests/server/router/faults_fixture.h"
#include "tests/server/router/fleet_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using ::testing::HasSubstr;
using testing::kInVain;
using ::testing::Not;

class FailoverTest : public testing::FaultsFixture {
 protected:
  double Failovers(const char* cause, const char* stage = "prefill") {
    return Metric(absl::StrCat("runahead_failovers_total{cause=\"", cause, "\",stage=\"", stage, "\"}"));
  }
  static int CountStarted(const Got& got) {
    return static_cast<int>(absl::c_count_if(got.responses, [](const auto& each) { return each.has_started(); }));
  }
  // The number by which the worker is asked how its paths stand.
  static uint64_t Question(FakeWorker& worker) {
    return worker.AwaitLine([](const v1::FormLine& line) { return line.question() != 0; }).question();
  }
  // What goes back to its defaults answers at once.
  static void Answer(FakeWorker& worker) {
    worker.Change([](FakeBehaviour& b) { b = FakeBehaviour(); });
  }
};

TEST_F(FailoverTest, APromptGoesOnWithAnotherWorkerWhenItsOwnDies) {
  Start({.decode = 2});
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  v1::GenerateRequest request = Ids(5, 3);
  request.mutable_sampling()->set_temperature(1);  // a seed is drawn
  Call call(*stub_, request);
  const v1::StartJob first = prefill_[0]->AwaitStarts(1).at(0);
  prefill_[0].reset();
  const Got got = call.Finish();
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(CountStarted(got), 1);
  EXPECT_THAT(got.started().plan().workers(), ElementsAre("prefill-0"));
  EXPECT_THAT(got.finished().plan().workers(), ElementsAre("prefill-1"));
  EXPECT_EQ(got.finished().failovers(), 1);
  EXPECT_EQ(got.ids(), (std::vector<int32_t>{100, 101, 102})) << "no token comes twice";
  EXPECT_EQ(got.finished().usage().prompt_tokens(), 5);

  const v1::StartJob second = prefill_[1]->AwaitStarts(1).at(0);
  EXPECT_NE(second.job(), first.job());
  EXPECT_EQ(second.request_id(), first.request_id());
  EXPECT_EQ(second.sampling().seed(), first.sampling().seed());
  EXPECT_EQ(second.sampling().seed(), got.started().seed());
  const auto lease_of = [](const v1::StartJob& start) {
    return std::make_pair(start.lease().incarnation(), start.lease().number());
  };
  EXPECT_NE(lease_of(second), lease_of(first)) << "a lease of its own";
  for (auto& worker : decode_) worker->AwaitLeases(0);

  double stages = 0;
  for (const auto& [name, seconds] : got.finished().timing().stages()) stages += seconds;
  EXPECT_NEAR(stages, got.finished().timing().ttft_s(), 1e-6);
  EXPECT_EQ(Failovers("worker_lost"), 1);
  EXPECT_EQ(Metric("runahead_prompt_tokens_total"), 5) << "a prompt counts once";
  EXPECT_EQ(Metric("runahead_admission_rejections_total{reason=\"no_workers\"}"), 0);
}

TEST_F(FailoverTest, AnAnswerThatNothingHappenedToSaysSo) {
  Start();
  const Got got = Generate(Ids(5, 3));
  EXPECT_EQ(got.finished().failovers(), 0);
  EXPECT_FALSE(got.finished().has_plan());
}

TEST_F(FailoverTest, ARequestThatWasThereWhenTwoWorkersDiedIsNotTriedAThirdTime) {
  Start({.prefill = 3});
  HoldPrefill(false, false);
  v1::GenerateRequest request = Ids(5, 3);
  request.set_request_id("poison");
  Call call(*stub_, request);
  prefill_[0]->AwaitStarts(1);
  prefill_[0].reset();
  prefill_[1]->AwaitStarts(1);
  ::testing::internal::CaptureStderr();
  prefill_[1].reset();
  const Got got = call.Finish();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(got.status.message(), HasSubstr("prefill-0 and prefill-1 died"));
  EXPECT_THAT(log, HasSubstr("request poison was being computed when prefill-0 and prefill-1 died"));
  decode_[0]->AwaitLeases(0);
  Answer(*prefill_[2]);
  EXPECT_TRUE(Generate(Ids(5, 3)).status.ok());
  prefill_.erase(prefill_.begin(), prefill_.begin() + 2);
}

// Was: the request went on, for a worker that did not reach the second one had said so before its end was known.
TEST_F(FailoverTest, ADeathOfWhichOnlyABrokenPathWasKnownCountsToo) {
  Start({.prefill = 1, .decode = 2});
  HoldPrefill(false, false);
  prefill_[0]->Change([](FakeBehaviour& b) { b.answers_of_paths = false; });
  Call call(*stub_, Ids(5, 3));
  const auto lease_of = [](const v1::StartJob& start) { return start.lease().incarnation(); };
  const uint64_t first = lease_of(prefill_[0]->AwaitStarts(1).at(0));
  const size_t one = decode_[0]->incarnation() == first ? 0 : 1;
  decode_[one].reset();
  const uint64_t job = prefill_[0]->AwaitStarts(2).at(1).job();
  const std::string address = decode_[1 - one]->address();
  prefill_[0]->SendDone(job, absl::UnavailableError("it is not reached"), v1::JOB_CAUSE_DECODE);
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  decode_[1 - one].reset();
  AwaitReady(1, 0);
  decode_[1 - one] =
      std::make_unique<FakeWorker>(Able(absl::StrCat("decode-", 1 - one), v1::WORKER_ROLE_DECODE), address);
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInternal) << got.status;
  EXPECT_THAT(got.status.message(), HasSubstr("died: it is not tried again"));
  EXPECT_EQ(prefill_[0]->AwaitStarts(2).size(), 2u);
  decode_.erase(decode_.begin() + one);
}

// A broken stream is no death where the worker is back as it was.
TEST_F(FailoverTest, ARequestMayBeCutOffMoreThanOnce) {
  Start({.prefill = 1});
  HoldPrefill(false, false);
  Call call(*stub_, Ids(5, 3));
  for (size_t cuts = 1; cuts <= 3; ++cuts) {
    prefill_[0]->AwaitStarts(cuts);
    if (cuts == 3) Answer(*prefill_[0]);
    prefill_[0]->DropStream();
  }
  const Got got = call.Finish();
  EXPECT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.finished().failovers(), 3);
}

TEST_F(FailoverTest, AFailureOfTheRequestItselfIsItsEnd) {
  Start();
  HoldPrefill(false, false);
  size_t starts = 0;
  for (const absl::Status& own : {absl::InvalidArgumentError("no such part"), absl::OutOfRangeError("too long")}) {
    Call call(*stub_, Ids(5, 3));
    const uint64_t job = prefill_[0]->AwaitStarts(++starts).back().job();
    prefill_[0]->SendDone(job, own, v1::JOB_CAUSE_ROUTER);
    EXPECT_THAT(call.Finish().status.message(), HasSubstr(std::string(own.message())));
  }
  Call call(*stub_, Ids(5, 3));
  prefill_[0]->AwaitStarts(++starts);
  call.Cancel();
  EXPECT_EQ(call.Finish().status.code(), absl::StatusCode::kCancelled);
  decode_[0]->AwaitLeases(0);
  EXPECT_EQ(prefill_[0]->AwaitStarts(starts).size(), starts);
  for (const char* cause : {"worker_lost", "worker_failed", "path_broken"}) EXPECT_EQ(Failovers(cause), 0) << cause;
}

TEST_F(FailoverTest, AWorkerThatFailedIsLeftOutOfTheNextPlanWhereThereIsAnother) {
  Start();
  prefill_[0]->Change([](FakeBehaviour& b) { b.prefill_end = absl::InternalError("the device failed"); });
  const Got got = Generate(Ids(5, 3));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_THAT(got.finished().plan().workers(), ElementsAre("prefill-1"));
  EXPECT_EQ(Failovers("worker_failed"), 1);
}

TEST_F(FailoverTest, APathThatBreaksIsPlannedAround) {
  Start();
  HoldPrefill(false, false);
  Call call(*stub_, Ids(5, 3));
  const uint64_t job = Job();
  HoldPrefill(true, true);
  prefill_[0]->SendDone(job, absl::UnavailableError("decode-0 is not reached"), v1::JOB_CAUSE_DECODE);
  EXPECT_TRUE(call.Finish().status.ok());
  EXPECT_EQ(Failovers("path_broken"), 1);
  ExpectAllFreeAndWorking();
}

// A plan that is made before would cross it again.
TEST_F(FailoverTest, TheOnlyPathIsTakenAgainOnceItsEndHasSaidHowItStands) {
  Start({.prefill = 1});
  HoldPrefill(false, false);
  prefill_[0]->Change([](FakeBehaviour& b) { b.answers_of_paths = false; });
  Call call(*stub_, Ids(5, 3));
  const uint64_t job = Job();
  HoldPrefill(true, true);
  prefill_[0]->SendDone(job, absl::UnavailableError("decode-0 is not reached"), v1::JOB_CAUSE_DECODE);
  const uint64_t question = Question(*prefill_[0]);
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  EXPECT_EQ(prefill_[0]->AwaitStarts(1).size(), 1u);
  prefill_[0]->AnswerOfPaths(question);
  EXPECT_TRUE(call.Finish().status.ok());
  EXPECT_EQ(Failovers("path_broken"), 1);
}

TEST_F(FailoverTest, AnEdgeThatFailedIsTakenAgainOnceBothItsEndsHaveSaidHowItStands) {
  Start();
  HoldPrefill(false, false);
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.answers_of_paths = false; });
  Call call(*stub_, Chain(3));
  for (auto& worker : prefill_) worker->AwaitStarts(1);
  HoldPrefill(true, true);
  prefill_[0]->SendDone(Job(), absl::UnavailableError("the edge broke"), v1::JOB_CAUSE_PEER);
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  for (auto& worker : prefill_) {
    EXPECT_EQ(worker->AwaitStarts(1).size(), 1u);
    worker->AnswerOfPaths(Question(*worker));
  }
  EXPECT_TRUE(call.Finish().status.ok());
}

TEST_F(FailoverTest, RetriesEndWithTheBudgetAndItIsShown) {
  Start();
  const double full = Metric("runahead_retry_budget");
  EXPECT_EQ(full, RetryBudget::kMost);
  while (parts_->retry_budget->Take()) {
  }
  EXPECT_LT(Metric("runahead_retry_budget"), 1);
  HoldPrefill(false, false);
  Call call(*stub_, Chain());
  prefill_[0]->SendDone(Job(), absl::UnavailableError("about to stop"));
  const Got got = call.Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("retry budget"));
  EXPECT_TRUE(RetryAfter(got.status).has_value());
  // Ten requests bring one.
  HoldPrefill(true, true);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Generate(Ids(5, 1)).status.ok());
  EXPECT_TRUE(parts_->retry_budget->Take());
  EXPECT_FALSE(parts_->retry_budget->Take());
}

TEST_F(FailoverTest, AMomentsAbsenceOfTheOnlyWorkerOfARoleIsWaitedFor) {
  Start({.prefill = 1});
  for (std::unique_ptr<FakeWorker>* worker : {&decode_[0], &prefill_[0]}) {
    const bool decode = worker == &decode_[0];
    const std::string address = (*worker)->address();
    worker->reset();
    decode ? AwaitReady(1, 0) : AwaitReady(0, 1);
    Call call(*stub_, Ids(5, 3));
    ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
    *worker = std::make_unique<FakeWorker>(
        decode ? Able("decode-0", v1::WORKER_ROLE_DECODE) : Able("prefill-0", v1::WORKER_ROLE_PREFILL), address);
    const Got got = call.Finish();
    EXPECT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.finished().failovers(), 0) << "it had not begun";
  }
  EXPECT_EQ(Metric("runahead_queue_depth{priority=\"normal\"}"), 0);
}

TEST_F(FailoverTest, ThoseThatWaitForAWorkerComeInTheirTurn) {
  Start({.prefill = 1});
  const std::string address = prefill_[0]->address();
  prefill_[0].reset();
  AwaitReady(0, 1);
  // The oldest takes one of the worker's two places and stays there. So the others, too long to share one, get theirs
  // one after the other: two requests with places would send their Starts on threads of their own.
  const FleetQueue::Ticket oldest(*queue_);
  queue_->PrefillTook(200, 1, absl::Seconds(1));  // so the oldest bears none of the others, who take about as long
  CancelToken cancel;
  auto held = std::async(std::launch::async, [&, returns = queue_->returns()] {
    const ChainRequest request{.tokens = 200, .width = 1, .parts = {}};
    EXPECT_TRUE(*RunHere(queue_->AwaitReturn(oldest, request, WorkerRole::kPrefill, returns, kInVain, kInVain, cancel,
                                             absl::InfiniteFuture())));
    return *RunHere(queue_->Acquire(oldest, request, PartitionTable(), cancel, absl::InfiniteFuture(), std::nullopt));
  });
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 5; ++i) {
    v1::GenerateRequest request = Ids(205 + i, 1);
    calls.push_back(std::make_unique<Call>(*stub_, request));
    ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", i + 2));
  }
  prefill_[0] = std::make_unique<FakeWorker>(Able("prefill-0", v1::WORKER_ROLE_PREFILL), address);
  for (auto& call : calls) EXPECT_TRUE(call->Finish().status.ok());
  std::vector<int> lengths;
  for (const v1::StartJob& start : prefill_[0]->AwaitStarts(5)) lengths.push_back(start.ids_size());
  EXPECT_THAT(lengths, ElementsAre(205, 206, 207, 208, 209));
  const Placement place = held.get();
  fleet_->WithdrawJob(*place.chain[0], place.number);
}

TEST_F(FailoverTest, WhoWaitsForAWorkerHoldsUpNobodyWhoNeedsItNot) {
  Start();
  prefill_[1].reset();
  AwaitReady(1, 1);
  Call wide(*stub_, Chain(3));
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 1));
  EXPECT_TRUE(Generate(Ids(5, 3)).status.ok());
  wide.Cancel();
  EXPECT_EQ(wide.Finish().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 0));
  prefill_.pop_back();
}

TEST_F(FailoverTest, TheWaitForAWorkerEndsWithTheDeadline) {
  Start();
  decode_.clear();
  AwaitReady(2, 0);
  const Got got = Call(*stub_, Ids(5, 3), absl::Milliseconds(300)).Finish();
  EXPECT_EQ(got.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 0));
}

TEST_F(FailoverTest, ALongAbsenceIsNotWaitedFor) {
  Start({.absence_timeout = absl::Milliseconds(200)});
  decode_.clear();
  AwaitReady(2, 0);
  const Got got = Generate(Ids(5, 3));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(got.status.message(), HasSubstr("no decode worker is ready"));
  EXPECT_TRUE(RetryAfter(got.status).has_value());
  EXPECT_EQ(Metric("runahead_admission_rejections_total{reason=\"no_workers\"}"), 1);
}

TEST_F(FailoverTest, NoMoreWaitForAWorkerThanTheQueueTakes) {
  Start({.queue_size = 2});
  decode_.clear();
  AwaitReady(2, 0);
  Call one(*stub_, Ids(5, 3)), two(*stub_, Ids(5, 3));
  ASSERT_TRUE(MetricBecomes("runahead_queue_depth{priority=\"normal\"}", 2));
  const Got got = Generate(Ids(5, 3));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(got.status.message(), HasSubstr("queue_size is 2"));
  one.Cancel();
  two.Cancel();
}

class FailoverDeathsTest : public testing::FleetTest {
 protected:
  FailoverDeathsTest() : budget_(metrics_) {
    Make(1);
    failover_.emplace("poison", *fleet_, budget_, metrics_);
  }
  // A worker that was there did not answer: the session, or a member of the chain, says so.
  absl::Status Judge(JobFault fault, std::shared_ptr<const LiveWorker> suspect) {
    return failover_->Judge(absl::UnavailableError("it does not answer"), {fault, nullptr, {std::move(suspect)}},
                            FailoverStage::kPrefill);
  }
  // The control stream to it has ended.
  absl::Status JudgeLost(std::shared_ptr<const LiveWorker> worker) {
    return failover_->Judge(absl::UnavailableError("it was lost"), {JobFault::kLost, std::move(worker)},
                            FailoverStage::kDecode);
  }
  static void Lose(const LiveWorker& worker) { worker.lost->Cancel(absl::UnavailableError("it was lost")); }
  // A process of the fleet, over its stream of this epoch.
  std::shared_ptr<LiveWorker> Joined(int index, uint64_t incarnation, uint64_t epoch = 1) {
    auto worker = Worker(index);
    worker->capabilities.set_incarnation(incarnation);
    worker->capabilities.set_epoch(epoch);
    fleet_->SetReady(worker);
    return worker;
  }

  RetryBudget budget_;
  std::optional<Failover> failover_;
};

// Was: a decode worker that died while its lease was renewed was never counted, for its loss was noticed later.
TEST_F(FailoverDeathsTest, DeathsAreCountedWhenTheNewsOfThemComesAfterTheAttempt) {
  const auto first = Worker(2), second = Worker(3);
  EXPECT_TRUE(Judge(JobFault::kLost, first).ok());
  Lose(*first);
  EXPECT_TRUE(failover_->Reconsider().ok());
  EXPECT_TRUE(Judge(JobFault::kPath, second).ok());
  EXPECT_TRUE(failover_->Reconsider().ok()) << "it may live";
  Lose(*second);
  EXPECT_EQ(failover_->Reconsider().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Judge(JobFault::kPath, first).code(), absl::StatusCode::kInternal) << "the attempt that began meanwhile";
}

TEST_F(FailoverDeathsTest, AWorkerDiesOnceHoweverManySaySo) {
  const auto worker = Worker(2);
  EXPECT_TRUE(Judge(JobFault::kPath, worker).ok());
  Lose(*worker);
  EXPECT_TRUE(Judge(JobFault::kPath, worker).ok());
  EXPECT_TRUE(
      failover_->Judge(absl::UnavailableError("it was lost"), {JobFault::kLost, worker}, FailoverStage::kPrefill).ok());
  EXPECT_TRUE(failover_->Reconsider().ok());
}

// Was: it counted again once another process had taken its seat, and one death later the answer ended.
TEST_F(FailoverDeathsTest, AWorkerThatWasOnlyCutOffHasNotDiedWhateverBecomesOfItLater) {
  const auto cut_off = Joined(2, 20), dies = Joined(3, 30);
  Lose(*cut_off);
  EXPECT_TRUE(JudgeLost(cut_off).ok());
  Joined(2, 20, 2);
  failover_->GotOn(clock_.Now());
  Joined(2, 21);
  Lose(*dies);
  EXPECT_TRUE(JudgeLost(dies).ok());
  const auto next = Joined(3, 31);
  Lose(*next);
  EXPECT_EQ(JudgeLost(next).code(), absl::StatusCode::kInternal) << "the second one that died";
}

// Was: it counted whenever it died, were it days later.
TEST_F(FailoverDeathsTest, AWorkerThatLivedOnBesideTheAnswerWasNotKilledByIt) {
  const auto reset = Joined(2, 20), dies = Joined(3, 30);
  EXPECT_TRUE(Judge(JobFault::kLost, reset).ok());
  failover_->GotOn(clock_.Now());
  clock_.Advance(kNewsOfDeath);
  failover_->GotOn(clock_.Now());
  Lose(*reset);
  Lose(*dies);
  EXPECT_TRUE(JudgeLost(dies).ok());
}

TEST_F(FailoverDeathsTest, TheNewsOfADeathMayComeWhenTheAnswerGoesOnAlready) {
  const auto first = Joined(2, 20), second = Joined(3, 30);
  EXPECT_TRUE(Judge(JobFault::kLost, first).ok());
  failover_->GotOn(clock_.Now());
  Lose(*first);
  clock_.Advance(kNewsOfDeath);
  failover_->GotOn(clock_.Now());
  Lose(*second);
  EXPECT_EQ(JudgeLost(second).code(), absl::StatusCode::kInternal);
}

// As in a rolling replacement, which a long answer may meet again and again.
TEST_F(FailoverDeathsTest, AWorkerThatStoppedAsItWasAskedToHasNotDied) {
  for (const int index : {2, 3}) {
    const auto worker = Worker(index);
    *worker->let_go = true;
    Lose(*worker);
    EXPECT_TRUE(
        failover_->Judge(absl::UnavailableError("it was lost"), {JobFault::kLost, worker}, FailoverStage::kDecode)
            .ok());
  }
  EXPECT_TRUE(failover_->Reconsider().ok());
}

}  // namespace
}  // namespace runahead
