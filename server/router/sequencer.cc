#include "server/router/sequencer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/base/log_later.h"
#include "server/base/random.h"
#include "server/router/worker_failure.h"

namespace runahead {
namespace {

JobFault FaultOf(const absl::Status& said, v1::JobCause cause) {
  if (absl::IsInvalidArgument(said) || absl::IsOutOfRange(said) || absl::IsDeadlineExceeded(said)) {
    return JobFault::kRequest;
  }
  switch (cause) {
    case v1::JOB_CAUSE_PEER:
    case v1::JOB_CAUSE_DECODE:
      return JobFault::kPath;
    case v1::JOB_CAUSE_ROUTER:
      return JobFault::kRequest;
    default:
      return JobFault::kFailed;
  }
}

}  // namespace

// Job numbers of an earlier router may still be known to edges between workers: start where it hardly was.
Sequencer::Sequencer() : next_job_((RandomBits64() & ~uint64_t{0xffffffff}) | 1) {}

void Sequencer::Attach(int worker, std::string name, std::shared_ptr<CommandSink> sink) {
  MutexLock lock(mu_);
  names_[worker] = name;
  workers_[worker] = {std::move(name), std::move(sink)};
}

void Sequencer::Detach(int worker, const absl::Status& why) {
  Calls calls;
  {
    MutexLock lock(mu_);
    const auto found = workers_.find(worker);
    if (found == workers_.end()) return;
    const End lost{
        {absl::UnavailableError(absl::StrCat("prefill worker ", found->second.name, " was lost: ", why.message())),
         JobFault::kLost, worker}};
    workers_.erase(found);
    std::vector<uint64_t> touched;
    for (const auto& [id, job] : jobs_) {
      for (const Member& member : job.members) {
        if (member.worker == worker && !member.done) touched.push_back(id);
      }
    }
    for (uint64_t id : touched) MemberDone(id, worker, lost, calls);
  }
  for (const auto& call : calls) call();
}

void Sequencer::Suspend(int worker) {
  MutexLock lock(mu_);
  if (const auto found = workers_.find(worker); found != workers_.end()) found->second.suspended = true;
}

void Sequencer::Resume(int worker) {
  MutexLock lock(mu_);
  if (const auto found = workers_.find(worker); found != workers_.end()) found->second.suspended = false;
}

void Sequencer::Send(std::vector<std::pair<int, v1::ControlCommand>> commands) {
  MutexLock lock(mu_);
  for (auto& [worker, command] : commands) {
    const auto found = workers_.find(worker);
    if (found != workers_.end()) found->second.sink->Write(std::move(command));
  }
}

absl::StatusOr<uint64_t> Sequencer::Start(std::vector<std::pair<int, v1::StartJob>> parts, JobEvents events) {
  MutexLock lock(mu_);
  for (const auto& [worker, part] : parts) {
    const auto found = workers_.find(worker);
    if (found == workers_.end() || found->second.suspended) {
      return absl::UnavailableError(
          absl::StrCat("prefill worker ", names_[worker], " was lost before the prompt was sent to it"));
    }
  }
  const uint64_t id = next_job_++;
  Job& job = jobs_[id];
  job.events = std::move(events);
  for (auto& [worker, part] : parts) {
    job.members.push_back({worker});
    v1::ControlCommand command;
    *command.mutable_start() = std::move(part);
    command.mutable_start()->set_job(id);
    workers_[worker].sink->Write(std::move(command));
  }
  return id;
}

void Sequencer::Cancel(uint64_t id) {
  Calls calls;
  {
    MutexLock lock(mu_);
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    EndJob(id, found->second, {absl::CancelledError("the prefill was cancelled"), JobFault::kRequest}, calls);
  }
  for (const auto& call : calls) call();
}

void Sequencer::Release(int worker, const v1::LeaseId& lease) {
  v1::ControlCommand command;
  *command.mutable_release()->mutable_lease() = lease;
  Send({{worker, std::move(command)}});
}

void Sequencer::EndOverdue(absl::Time now) {
  Calls calls;
  {
    MutexLock lock(mu_);
    const std::vector<uint64_t> waiting(without_cause_.begin(), without_cause_.end());
    for (const uint64_t id : waiting) {
      Job& job = jobs_.at(id);
      if (job.cause_due == absl::InfiniteFuture()) job.cause_due = now + kCauseTimeout;
      if (now >= job.cause_due) EndJob(id, job, job.outcome, calls);
    }
  }
  for (const auto& call : calls) call();
}

void Sequencer::OnReport(int worker, const v1::ControlReport& report) {
  for (const auto& call : Dispatch(worker, report)) call();
}

Sequencer::Calls Sequencer::Dispatch(int worker, const v1::ControlReport& report) {
  Calls calls;
  LogLater later;
  MutexLock lock(mu_);
  if (!workers_.contains(worker)) return calls;  // detached: its jobs have failed already
  if (report.has_first_token()) {
    const auto found = jobs_.find(report.first_token().job());
    // A token of a job that has failed meanwhile crossed the cancel on its way.
    if (found == jobs_.end() || found->second.cancel_sent) return calls;
    calls.push_back([event = found->second.events.first_token, token = report.first_token()] { event(token); });
  } else if (report.has_scores()) {
    const auto found = jobs_.find(report.scores().job());
    if (found == jobs_.end() || !found->second.events.scores) return calls;
    calls.push_back([event = found->second.events.scores, worker, &report] { event(worker, report.scores()); });
  } else if (report.has_done()) {
    const auto found = jobs_.find(report.done().job());
    if (found == jobs_.end()) {
      later.Warning("sequencer", "worker ", worker, " reports the end of job ", report.done().job(),
                    ", which is unknown");
      return calls;
    }
    if (report.done().has_spans() && found->second.events.spans) {
      calls.push_back(
          [event = found->second.events.spans, worker, spans = report.done().spans()] { event(worker, spans); });
    }
    if (report.done().code() == 0 || !found->second.ended) {
      calls.push_back([event = found->second.events.reported, worker, done = report.done()] {
        event(worker, absl::Status(static_cast<absl::StatusCode>(done.code()), done.message()), done.cause());
      });
    }
    MemberDone(report.done().job(), worker, EndOf(worker, report.done()), calls);
  }
  return calls;
}

Sequencer::End Sequencer::EndOf(int worker, const v1::JobDone& done) const {
  if (done.code() == 0) return {};
  const absl::Status said(static_cast<absl::StatusCode>(done.code()), done.message());
  const bool as_asked = done.cause() == v1::JOB_CAUSE_ROUTER && absl::IsCancelled(said);
  // A frame that never comes whole is known to its two ends only: nobody else can name another cause.
  const bool elsewhere = done.cause() == v1::JOB_CAUSE_PEER && !absl::IsDataLoss(said);
  End end;
  end.status = OfWorker(absl::StrCat("prefill worker ", workers_.at(worker).name), said);
  end.fault = FaultOf(said, done.cause());
  end.worker = worker;
  end.consequence = as_asked || elsewhere;
  const bool handoff = done.cause() == v1::JOB_CAUSE_DECODE;
  if (handoff || done.cause() == v1::JOB_CAUSE_PEER) end.failed_over.push_back({worker, handoff});
  return end;
}

void Sequencer::MemberDone(uint64_t id, int worker, End end, Calls& calls) {
  const auto found = jobs_.find(id);
  Job& job = found->second;
  const auto member = std::find_if(job.members.begin(), job.members.end(),
                                   [&](const Member& m) { return m.worker == worker && !m.done; });
  if (member == job.members.end()) return;
  member->done = true;
  calls.push_back([event = job.events.member_free, worker] { event(worker); });
  const bool all = std::all_of(job.members.begin(), job.members.end(), [](const Member& m) { return m.done; });
  if (!end.status.ok()) {
    SendCancels(id, job);
    job.failed_over.insert(job.failed_over.end(), end.failed_over.begin(), end.failed_over.end());
    if (job.outcome.status.ok() || (job.outcome.consequence && !end.consequence)) job.outcome = std::move(end);
  }
  const bool known = !job.outcome.status.ok() && !job.outcome.consequence;
  if (known || all) {
    EndJob(id, job, job.outcome, calls);
  } else if (!job.outcome.status.ok() && !job.ended) {
    without_cause_.insert(id);
  }
  if (all) jobs_.erase(found);
}

void Sequencer::EndJob(uint64_t id, Job& job, const JobOutcome& end, Calls& calls) {
  if (!end.status.ok()) SendCancels(id, job);
  if (job.ended) return;
  job.ended = true;
  without_cause_.erase(id);
  JobOutcome outcome = end;
  outcome.failed_over = job.failed_over;
  calls.push_back([event = job.events.ended, outcome = std::move(outcome)] { event(outcome); });
}

void Sequencer::SendCancels(uint64_t id, Job& job) {
  if (job.cancel_sent) return;
  job.cancel_sent = true;
  for (const Member& member : job.members) {
    const auto found = workers_.find(member.worker);
    if (member.done || found == workers_.end()) continue;
    v1::ControlCommand command;
    command.mutable_cancel()->set_job(id);
    found->second.sink->Write(std::move(command));
  }
}

}  // namespace runahead
