#include "server/router/sequencer.h"

#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Keeps what was written, in order.
class KeptCommands : public CommandSink {
 public:
  void Write(v1::ControlCommand command) override { commands.push_back(std::move(command)); }

  std::vector<uint64_t> starts() const {
    std::vector<uint64_t> jobs;
    for (const v1::ControlCommand& command : commands) {
      if (command.has_start()) jobs.push_back(command.start().job());
    }
    return jobs;
  }
  std::vector<uint64_t> cancels() const {
    std::vector<uint64_t> jobs;
    for (const v1::ControlCommand& command : commands) {
      if (command.has_cancel()) jobs.push_back(command.cancel().job());
    }
    return jobs;
  }

  std::vector<v1::ControlCommand> commands;
};

struct Heard {
  int first_tokens = 0;
  std::vector<absl::Status> ended;
  std::vector<JobOutcome> outcomes;  // of those
  std::vector<int> free;
  std::vector<std::pair<int, v1::JobCause>> reported;

  JobEvents Events() {
    return {[this](const v1::FirstToken&) { ++first_tokens; },
            [this](const JobOutcome& end) {
              ended.push_back(end.status);
              outcomes.push_back(end);
            },
            [this](int worker) { free.push_back(worker); },
            [this](int worker, const absl::Status&, v1::JobCause cause) { reported.emplace_back(worker, cause); }};
  }
};

class SequencerTest : public ::testing::Test {
 protected:
  SequencerTest() {
    for (int i = 0; i < 3; ++i) {
      sinks_.push_back(std::make_shared<KeptCommands>());
      sequencer_.Attach(i, absl::StrCat("p", i), sinks_.back());
    }
  }
  static std::vector<std::pair<int, v1::StartJob>> On(std::vector<int> workers) {
    std::vector<std::pair<int, v1::StartJob>> parts;
    for (int worker : workers) parts.emplace_back(worker, v1::StartJob());
    return parts;
  }
  void Done(int worker, uint64_t job, absl::StatusCode code = absl::StatusCode::kOk, const char* message = "",
            v1::JobCause cause = v1::JOB_CAUSE_OWN) {
    v1::ControlReport report;
    report.mutable_done()->set_job(job);
    report.mutable_done()->set_code(static_cast<int>(code));
    report.mutable_done()->set_message(message);
    if (code != absl::StatusCode::kOk) report.mutable_done()->set_cause(cause);
    sequencer_.OnReport(worker, report);
  }

  Sequencer sequencer_;
  std::vector<std::shared_ptr<KeptCommands>> sinks_;
};

TEST_F(SequencerTest, StartsEveryMemberWithOneNumberAndEndsWhenAllAreDone) {
  Heard heard;
  const uint64_t job = *sequencer_.Start(On({0, 1}), heard.Events());
  EXPECT_THAT(sinks_[0]->starts(), ElementsAre(job));
  EXPECT_THAT(sinks_[1]->starts(), ElementsAre(job));
  EXPECT_TRUE(sinks_[2]->commands.empty());
  v1::ControlReport first;
  first.mutable_first_token()->set_job(job);
  sequencer_.OnReport(1, first);
  EXPECT_EQ(heard.first_tokens, 1);
  Done(1, job);
  EXPECT_TRUE(heard.ended.empty());
  Done(0, job);
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_TRUE(heard.ended[0].ok());
  EXPECT_THAT(heard.free, ElementsAre(1, 0));
  EXPECT_TRUE(sinks_[0]->cancels().empty());
}

TEST_F(SequencerTest, NumbersRiseAndAreNotThoseOfAnotherRouter) {
  Heard heard;
  const uint64_t one = *sequencer_.Start(On({0}), heard.Events());
  EXPECT_EQ(*sequencer_.Start(On({0}), heard.Events()), one + 1);
  EXPECT_NE(*Sequencer().Start({}, heard.Events()), one);
}

TEST_F(SequencerTest, NothingNewIsStartedOnASuspendedWorkerAndWhatItHasGoesOn) {
  Heard heard, refused;
  const uint64_t job = *sequencer_.Start(On({0, 1}), heard.Events());
  sequencer_.Suspend(1);
  const absl::Status status = sequencer_.Start(On({0, 1}), refused.Events()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("p1"));
  EXPECT_THAT(sinks_[0]->starts(), ElementsAre(job)) << "then nobody is told";
  EXPECT_TRUE(sequencer_.Start(On({0, 2}), refused.Events()).ok());
  sequencer_.Cancel(job);
  EXPECT_THAT(sinks_[1]->cancels(), ElementsAre(job));
  Done(1, job, absl::StatusCode::kCancelled, "as asked", v1::JOB_CAUSE_ROUTER);
  EXPECT_THAT(heard.free, ElementsAre(1));
  sequencer_.Resume(1);
  EXPECT_TRUE(sequencer_.Start(On({1}), refused.Events()).ok());
}

TEST_F(SequencerTest, AWorkerThatWasLostWhileSuspendedComesBackAsAnyOther) {
  Heard heard;
  sequencer_.Suspend(1);
  sequencer_.Detach(1, absl::UnavailableError("gone"));
  sequencer_.Attach(1, "p1", sinks_[1]);
  EXPECT_TRUE(sequencer_.Start(On({1}), heard.Events()).ok());
}

TEST_F(SequencerTest, AFailureCancelsTheOthersAndIsToldOnce) {
  Heard heard;
  const uint64_t job = *sequencer_.Start(On({0, 1, 2}), heard.Events());
  Done(2, job);
  Done(1, job, absl::StatusCode::kInternal, "the device failed");
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_EQ(heard.ended[0], absl::InternalError("prefill worker p1: the device failed"));
  EXPECT_THAT(sinks_[0]->cancels(), ElementsAre(job));
  EXPECT_TRUE(sinks_[1]->cancels().empty());  // done already
  EXPECT_TRUE(sinks_[2]->cancels().empty());
  Done(0, job, absl::StatusCode::kCancelled);
  EXPECT_EQ(heard.ended.size(), 1u);
  EXPECT_THAT(heard.free, ElementsAre(2, 1, 0));
}

TEST_F(SequencerTest, AConsequenceDoesNotEndTheJobBeforeItsCauseIsKnown) {
  Heard heard;
  const uint64_t job = *sequencer_.Start(On({0, 1, 2}), heard.Events());
  Done(0, job, absl::StatusCode::kCancelled, "dropped", v1::JOB_CAUSE_PEER);
  EXPECT_TRUE(heard.ended.empty());
  EXPECT_THAT(heard.free, ElementsAre(0));  // at once: the worker has nothing of the job any more
  EXPECT_THAT(sinks_[1]->cancels(), ElementsAre(job));
  EXPECT_THAT(sinks_[2]->cancels(), ElementsAre(job));
  v1::ControlReport late;
  late.mutable_first_token()->set_job(job);
  sequencer_.OnReport(2, late);
  EXPECT_EQ(heard.first_tokens, 0);  // the job cannot end well any more
  Done(1, job, absl::StatusCode::kInternal, "the device failed", v1::JOB_CAUSE_OWN);
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_EQ(heard.ended[0], absl::InternalError("prefill worker p1: the device failed"));
  Done(2, job, absl::StatusCode::kCancelled, "as asked", v1::JOB_CAUSE_ROUTER);
  EXPECT_EQ(heard.ended.size(), 1u);
  EXPECT_EQ(sinks_[1]->cancels().size(), 1u);
}

// With the end itself: what members report may overlap, so their own events may come after it.
TEST_F(SequencerTest, AnEndNamesAllWhoFailedOverAPathOfTheirs) {
  std::vector<std::pair<int, bool>> over;  // and whether it was the hand-off
  const JobEvents events = {[](const v1::FirstToken&) {},
            [&over](const JobOutcome& end) {
              EXPECT_EQ(end.fault, JobFault::kPath);
              for (const FailedOver& each : end.failed_over) over.emplace_back(each.worker, each.handoff);
            },
            [](int) {}, [](int, const absl::Status&, v1::JobCause) {}};
  const uint64_t edge = *sequencer_.Start(On({0, 1, 2}), events);
  Done(0, edge, absl::StatusCode::kUnavailable, "the edge is dead", v1::JOB_CAUSE_PEER);
  Done(1, edge, absl::StatusCode::kUnavailable, "the edge is dead", v1::JOB_CAUSE_PEER);
  Done(2, edge, absl::StatusCode::kCancelled, "as asked", v1::JOB_CAUSE_ROUTER);
  EXPECT_THAT(over, ElementsAre(Pair(0, false), Pair(1, false)));
  over.clear();
  const uint64_t handoff = *sequencer_.Start(On({0, 1}), events);
  Done(1, handoff, absl::StatusCode::kUnavailable, "not reached", v1::JOB_CAUSE_DECODE);
  EXPECT_THAT(over, ElementsAre(Pair(1, true)));
}

TEST_F(SequencerTest, ACauseThatNeverComesHoldsTheClientForSecondsOnly) {
  Heard heard;
  const absl::StatusOr<uint64_t> job = sequencer_.Start(On({0, 1, 2}), heard.Events());
  ASSERT_TRUE(job.ok());
  const absl::Time began = absl::UnixEpoch();
  sequencer_.EndOverdue(began);
  Done(0, *job, absl::StatusCode::kUnavailable, "the edge is dead", v1::JOB_CAUSE_PEER);
  sequencer_.EndOverdue(began);
  sequencer_.EndOverdue(began + kCauseTimeout - absl::Milliseconds(1));
  EXPECT_TRUE(heard.ended.empty());
  sequencer_.EndOverdue(began + kCauseTimeout);
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_THAT(heard.ended[0].ToString(), HasSubstr("the edge is dead"));
  // Those who hang may end late, and are not free before.
  EXPECT_THAT(heard.free, ElementsAre(0));
  Done(1, *job, absl::StatusCode::kInternal, "the device hung", v1::JOB_CAUSE_OWN);
  Done(2, *job, absl::StatusCode::kCancelled, "", v1::JOB_CAUSE_ROUTER);
  EXPECT_THAT(heard.free, ElementsAre(0, 1, 2));
  EXPECT_EQ(heard.ended.size(), 1u);
  sequencer_.EndOverdue(began + absl::Hours(1));
}

TEST_F(SequencerTest, ADeathIsTheCauseOfWhatItsNeighboursReport) {
  Heard heard;
  const uint64_t job = *sequencer_.Start(On({0, 1, 2}), heard.Events());
  Done(0, job, absl::StatusCode::kUnavailable, "its successor p1: connection reset", v1::JOB_CAUSE_PEER);
  Done(2, job, absl::StatusCode::kCancelled, "dropped", v1::JOB_CAUSE_PEER);
  EXPECT_TRUE(heard.ended.empty());
  sequencer_.Detach(1, absl::UnavailableError("connection reset"));
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_EQ(heard.ended[0], absl::UnavailableError("prefill worker p1 was lost: connection reset"));
  EXPECT_THAT(heard.free, ElementsAre(0, 2, 1));
  EXPECT_THAT(heard.reported, ElementsAre(Pair(0, v1::JOB_CAUSE_PEER), Pair(2, v1::JOB_CAUSE_PEER)));
}

TEST_F(SequencerTest, WhereNobodyOwnsTheFailureTheFirstToReportIsBelieved) {
  Heard heard;
  const uint64_t job = *sequencer_.Start(On({0, 1, 2}), heard.Events());
  Done(1, job, absl::StatusCode::kUnavailable, "this worker has no edge to its successor", v1::JOB_CAUSE_PEER);
  Done(0, job, absl::StatusCode::kCancelled, "dropped", v1::JOB_CAUSE_PEER);
  EXPECT_TRUE(heard.ended.empty());
  Done(2, job);  // had nothing to do any more: no failure, no cause
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_EQ(heard.ended[0], absl::UnavailableError("prefill worker p1: this worker has no edge to its successor"));
}

// No other member can name another cause: the client need not wait for one.
TEST_F(SequencerTest, AFrameThatNeverCameWholeIsACauseToo) {
  Heard heard;
  const uint64_t job = *sequencer_.Start(On({0, 1, 2}), heard.Events());
  Done(2, job, absl::StatusCode::kCancelled, "dropped", v1::JOB_CAUSE_PEER);
  EXPECT_TRUE(heard.ended.empty());
  Done(1, job, absl::StatusCode::kDataLoss, "KV came damaged", v1::JOB_CAUSE_PEER);
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_EQ(heard.outcomes[0].fault, JobFault::kPath) << "neither worker is to blame";
  EXPECT_THAT(std::string(heard.ended[0].message()), HasSubstr("prefill worker p1: KV came damaged"));
  Done(0, job, absl::StatusCode::kDataLoss, "the frame came damaged", v1::JOB_CAUSE_PEER);
  EXPECT_EQ(heard.ended.size(), 1u);
}

TEST_F(SequencerTest, ADeadlineAndTheDecodeWorkerAreCausesToo) {
  for (const v1::JobCause cause : {v1::JOB_CAUSE_ROUTER, v1::JOB_CAUSE_DECODE}) {
    Heard heard;
    const uint64_t job = *sequencer_.Start(On({0, 1, 2}), heard.Events());
    Done(2, job, absl::StatusCode::kCancelled, "dropped", v1::JOB_CAUSE_PEER);
    Done(1, job, absl::StatusCode::kDeadlineExceeded, "too late", cause);
    ASSERT_EQ(heard.ended.size(), 1u) << cause;
    EXPECT_EQ(heard.ended[0], absl::DeadlineExceededError("prefill worker p1: too late"));
    Done(0, job, absl::StatusCode::kCancelled, "as asked", v1::JOB_CAUSE_ROUTER);
  }
}

TEST_F(SequencerTest, TheAnswerToACancelIsNoCause) {
  Heard heard;
  const uint64_t job = *sequencer_.Start(On({0, 1}), heard.Events());
  Done(0, job, absl::StatusCode::kUnavailable, "its successor: no route", v1::JOB_CAUSE_PEER);
  Done(1, job, absl::StatusCode::kCancelled, "as asked", v1::JOB_CAUSE_ROUTER);
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_EQ(heard.ended[0], absl::UnavailableError("prefill worker p0: its successor: no route"));
}

TEST_F(SequencerTest, AClientThatGoesWhileTheCauseIsAwaitedIsNotKeptWaiting) {
  Heard heard;
  const uint64_t job = *sequencer_.Start(On({0, 1}), heard.Events());
  Done(0, job, absl::StatusCode::kCancelled, "dropped", v1::JOB_CAUSE_PEER);
  sequencer_.Cancel(job);
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_EQ(heard.ended[0].code(), absl::StatusCode::kCancelled);
  Done(1, job, absl::StatusCode::kInternal, "the device failed", v1::JOB_CAUSE_OWN);
  EXPECT_EQ(heard.ended.size(), 1u);
  EXPECT_THAT(heard.free, ElementsAre(0, 1));
}

TEST_F(SequencerTest, ABrokenStreamFailsWhatIsNotDoneThere) {
  Heard done_there, waiting;
  const uint64_t first = *sequencer_.Start(On({0, 1}), done_there.Events());
  const uint64_t second = *sequencer_.Start(On({1, 2}), waiting.Events());
  Done(1, first);
  sequencer_.Detach(1, absl::UnavailableError("connection reset"));
  EXPECT_TRUE(done_there.ended.empty());
  ASSERT_EQ(waiting.ended.size(), 1u);
  EXPECT_EQ(waiting.ended[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(waiting.ended[0].message(), HasSubstr("p1 was lost: connection reset"));
  EXPECT_THAT(sinks_[2]->cancels(), ElementsAre(second));
  EXPECT_THAT(waiting.free, ElementsAre(1));
  Done(0, first);
  EXPECT_TRUE(done_there.ended.at(0).ok());
  const absl::Status refused = sequencer_.Start(On({0, 1}), waiting.Events()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("prefill worker p1 was lost"));
  EXPECT_THAT(sinks_[0]->starts(), ElementsAre(first));  // nothing was sent of the job that could not start
}

TEST_F(SequencerTest, CancelGoesToThoseWhoAreNotDoneAndIsNoNewsTwice) {
  Heard heard;
  const uint64_t job = *sequencer_.Start(On({0, 1}), heard.Events());
  Done(0, job);
  sequencer_.Cancel(job);
  sequencer_.Cancel(job);
  EXPECT_TRUE(sinks_[0]->cancels().empty());
  EXPECT_THAT(sinks_[1]->cancels(), ElementsAre(job));
  ASSERT_EQ(heard.ended.size(), 1u);
  EXPECT_EQ(heard.ended[0].code(), absl::StatusCode::kCancelled);
  v1::ControlReport late;  // crossed the cancel on its way
  late.mutable_first_token()->set_job(job);
  sequencer_.OnReport(1, late);
  EXPECT_EQ(heard.first_tokens, 0);
  Done(1, job, absl::StatusCode::kCancelled);
  EXPECT_THAT(heard.free, ElementsAre(0, 1));
  Done(1, job);  // unknown by now: logged, no harm
}

TEST_F(SequencerTest, OverlappingJobsStandInTheSameOrderOnAllWorkers) {
  constexpr int kThreads = 8;
  constexpr int kJobs = 50;
  Heard heard;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kJobs; ++i) {
        const std::vector<int> segment = (t + i) % 3 == 0   ? std::vector<int>{0, 1, 2}
                                         : (t + i) % 3 == 1 ? std::vector<int>{0, 1}
                                                            : std::vector<int>{1, 2};
        ASSERT_TRUE(sequencer_.Start(On(segment), heard.Events()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sinks_[1]->starts().size(), static_cast<size_t>(kThreads * kJobs));
  for (const auto& sink : sinks_) {
    const std::vector<uint64_t> starts = sink->starts();
    EXPECT_TRUE(std::is_sorted(starts.begin(), starts.end()));
    EXPECT_EQ(std::set<uint64_t>(starts.begin(), starts.end()).size(), starts.size());
  }
}

}  // namespace
}  // namespace runahead
