#include "server/router/prefill_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/router/worker_failure.h"
#include "server/rpc/schedule_proto.h"

namespace runahead {

namespace {

void SetLife(const LiveWorker& worker, v1::WorkerLife& to) {
  to.set_incarnation(worker.capabilities.incarnation());
  to.set_epoch(worker.capabilities.epoch());
}

}  // namespace

std::vector<v1::StartJob> StartJobs(const PrefillOrder& order, const Placement& placement) {
  const ChainPlan& plan = placement.plan;
  const std::vector<int64_t>& parts = plan.parts;
  v1::StartJob common;
  common.set_request_id(order.request_id);
  common.set_schedule(ScheduleToProto(plan.schedule));
  common.set_interleave(plan.overtakes);
  common.set_expected_us(absl::ToInt64Microseconds(absl::Seconds(placement.expected_s)));
  common.set_allowance_us(absl::ToInt64Microseconds(absl::Seconds(placement.allowance.left_s())));
  if (order.trace != nullptr) common.set_traceparent(order.trace->traceparent());
  int64_t end = plan.known_tokens;
  common.add_bounds(static_cast<int32_t>(end));
  for (int64_t part : parts) common.add_bounds(static_cast<int32_t>(end += part));
  if (order.lease != nullptr) {
    const v1::Capabilities& decode = order.lease->worker().capabilities;
    *common.mutable_lease() = order.lease->id();
    common.set_x_tokens(order.lease->x_tokens());
    common.set_kv_from(order.lease->kv_from());
    common.mutable_decode()->set_name(decode.name());
    common.mutable_decode()->set_link_address(decode.link_address());
    common.mutable_decode()->set_incarnation(decode.incarnation());
    common.mutable_decode()->set_epoch(decode.epoch());
  }
  if (order.time_left != absl::InfiniteDuration()) {
    // Rounded up: no worker's deadline passes before the router's.
    const int64_t left_ms = absl::ToInt64Milliseconds(absl::Ceil(order.time_left, absl::Milliseconds(1)));
    common.set_deadline_ms(std::max<int64_t>(1, left_ms));
  }
  std::vector<v1::StartJob> jobs(parts.size(), common);
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool tail = i + 1 == parts.size();
    const absl::Span<const int32_t> ids = tail ? order.ids : order.ids.subspan(common.bounds(i), parts[i]);
    jobs[i].set_part(static_cast<int32_t>(i));
    jobs[i].mutable_ids()->Add(ids.begin(), ids.end());
    if (order.prompt_logprobs) jobs[i].set_prompt_logprobs(*order.prompt_logprobs);
    if (order.prompt_logprobs && !tail) jobs[i].set_next_id(order.ids[static_cast<size_t>(common.bounds(i + 1))]);
    if (tail) *jobs[i].mutable_sampling() = order.sampling;
    if (tail && order.rules != nullptr) *jobs[i].mutable_rules() = *order.rules;
    if (i > 0) SetLife(*placement.chain[i - 1], *jobs[i].mutable_predecessor());
    if (!tail) SetLife(*placement.chain[i + 1], *jobs[i].mutable_successor());
  }
  return jobs;
}

PrefillRun::PrefillRun(Placement placement, Fleet& fleet, Sequencer& sequencer, RouterMetrics& metrics, Clock& clock)
    : placement_(std::move(placement)),
      fleet_(fleet),
      sequencer_(sequencer),
      metrics_(metrics),
      clock_(clock),
      unfinished_(placement_.chain.size()) {}

PrefillRun::~PrefillRun() {
  MutexLock lock(mu_);
  if (started_) return;
  for (const auto& worker : placement_.chain) fleet_.WithdrawJob(*worker, placement_.number);
}

absl::Status PrefillRun::Start(const PrefillOrder& order) {
  std::vector<v1::StartJob> jobs = StartJobs(order, placement_);
  std::vector<std::pair<int, v1::StartJob>> parts;
  for (size_t i = 0; i < jobs.size(); ++i) parts.emplace_back(placement_.chain[i]->index, std::move(jobs[i]));
  JobEvents events;
  events.first_token = [self = shared_from_this()](const v1::FirstToken& token) {
    MutexLock lock(self->mu_);
    self->first_token_ = token;
    self->news_.Notify();
  };
  events.ended = [self = shared_from_this()](const JobOutcome& end) { self->Ended(end); };
  events.member_free = [self = shared_from_this()](int worker) { self->MemberFree(worker); };
  events.reported = [self = shared_from_this()](int worker, const absl::Status& said, v1::JobCause cause) {
    self->Reported(worker, said, cause);
  };
  if (order.trace != nullptr) {
    events.spans = [self = shared_from_this(), trace = order.trace](int worker, const v1::TraceSpans& spans) {
      const LiveWorker& member = *self->Member(worker);
      trace->AddWorker(member.capabilities, spans, *member.clock, self->clock_.Now());
    };
  }
  if (order.prompt_logprobs) {
    events.scores = [self = shared_from_this()](int worker, const v1::PromptScores& scores) {
      self->Scored(worker, scores);
    };
  }
  {
    // Before the workers can answer: an answer counts its member down.
    MutexLock lock(mu_);
    started_ = true;
    if (order.prompt_logprobs) scores_.emplace(placement_.plan.parts);
    if (order.lease != nullptr) decode_ = order.lease->live();
  }
  const absl::StatusOr<uint64_t> job = sequencer_.Start(std::move(parts), std::move(events));
  MutexLock lock(mu_);
  started_ = job.ok();
  RUNAHEAD_RETURN_IF_ERROR(job.status());
  job_ = *job;
  return absl::OkStatus();
}

std::shared_ptr<CancelToken> PrefillRun::DecodeLost() {
  MutexLock lock(mu_);
  return decode_ != nullptr ? decode_->lost : std::make_shared<CancelToken>();
}

Task<absl::StatusOr<std::optional<v1::FirstToken>>> PrefillRun::AwaitFirstToken(absl::Time until, CancelToken& cancel) {
  const auto notify = [this] { news_.Notify(); };
  const std::shared_ptr<CancelToken> lost = DecodeLost();
  const CancelToken::Subscription on_cancel = cancel.OnCancel(notify);
  const CancelToken::Subscription on_lost = lost->OnCancel(notify);
  while (true) {
    if (auto found = Look(until, cancel, *lost)) co_return *std::move(found);
    co_await news_.Until(clock_, until);
  }
}

std::optional<absl::StatusOr<std::optional<v1::FirstToken>>> PrefillRun::Look(absl::Time until,
                                                                              const CancelToken& cancel,
                                                                              const CancelToken& lost) {
  MutexLock lock(mu_);
  RUNAHEAD_RETURN_IF_ERROR(cancel.status());
  RUNAHEAD_RETURN_IF_ERROR(failed_.status());
  RUNAHEAD_RETURN_IF_ERROR(lost.status());
  const std::optional<v1::FirstToken> none;
  if (scores_ && scores_->Ready()) return none;
  const bool whole = first_token_ && (!scores_ || scores_->done());
  if (whole) return first_token_;
  if (clock_.Now() >= until) return none;
  return std::nullopt;
}

std::optional<v1::PromptScores> PrefillRun::TakeScores() {
  MutexLock lock(mu_);
  return scores_ ? scores_->Take() : std::nullopt;
}

void PrefillRun::Scored(int worker, const v1::PromptScores& scores) {
  MutexLock lock(mu_);
  const absl::Status added = scores_->Add(PlaceOf(worker), scores);
  if (!added.ok()) return FailScores(worker, absl::InternalError(absl::StrCat("reports ", added.message())));
  if (scores_->Ready()) news_.Notify();
}

void PrefillRun::FailScores(int worker, const absl::Status& why) {
  failure_ = {JobFault::kFailed, Member(worker)};
  failed_.Cancel(OfWorker(absl::StrCat("prefill worker ", Member(worker)->capabilities.name()), why));
  news_.Notify();
}

void PrefillRun::Cancel() {
  uint64_t job = 0;
  {
    MutexLock lock(mu_);
    if (!started_ || unfinished_ == 0 || cancelled_at_) return;
    cancelled_at_ = clock_.Now();
    job = job_;
  }
  sequencer_.Cancel(job);
}

PrefillRun::Failure PrefillRun::failure() {
  MutexLock lock(mu_);
  const bool lost = failure_.fault == JobFault::kNone || failure_.fault == JobFault::kPath;
  if (lost && decode_ != nullptr && decode_->lost->cancelled()) return {JobFault::kLost, decode_};
  Failure failure = failure_;
  // No member says that it failed: the session did not reach the decode worker.
  if (failure.fault == JobFault::kNone && decode_ != nullptr) failure.suspects = {decode_};
  return failure;
}

void PrefillRun::Ended(const JobOutcome& end) {
  // Before the session hears of the end: its next plan is not to cross them.
  if (end.fault == JobFault::kPath) fleet_.Doubt(PathsOf(end));
  MutexLock lock(mu_);
  if (!end.status.ok()) {
    // Where scores were wrong, that is why it is cancelled.
    const bool told = failure_.fault != JobFault::kNone;
    if (!told) failure_ = {end.fault, end.worker < 0 ? nullptr : Member(end.worker), SuspectsOf(end)};
    failed_.Cancel(end.status);
  } else if (!first_token_) {
    failure_ = {JobFault::kFailed, placement_.chain.back()};
    failed_.Cancel(absl::InternalError("the chain ended without a token"));
  }
  news_.Notify();
}

void PrefillRun::Reported(int worker, const absl::Status& said, v1::JobCause cause) {
  Ejections& ejections = fleet_.ejections();
  // Unavailable is who is about to stop; and what is the request's, such as rules that leave no token, is nobody's
  // here.
  const bool of_request = absl::IsInvalidArgument(said) || absl::IsOutOfRange(said);
  const bool own = cause == v1::JOB_CAUSE_OWN && !absl::IsUnavailable(said) && !of_request;
  if (said.ok() || own) ejections.Judge(WorkerRole::kPrefill, worker, said);
  MutexLock lock(mu_);
  if (said.ok() && scores_ && !failed_.cancelled() && !scores_->Complete(PlaceOf(worker))) {
    FailScores(worker, absl::UnavailableError(absl::StrCat(
                           "its build ", Member(worker)->capabilities.build(),
                           " does not report all log probabilities of its part (prompt_logprobs): it is older than "
                           "this router's")));
  }
  if (cause != v1::JOB_CAUSE_DECODE || !IsToBlame(said)) return;
  if (decode_ != nullptr) ejections.Judge(WorkerRole::kDecode, decode_->index, said);
}

std::vector<WorkerPath> PrefillRun::PathsOf(const JobOutcome& end) {
  const auto& chain = placement_.chain;
  const auto life = [&](size_t place) { return LifeOf(chain[place]->capabilities); };
  std::vector<WorkerPath> paths;
  MutexLock lock(mu_);
  for (const auto& [worker, handoff] : end.failed_over) {
    const size_t place = PlaceOf(worker);
    if (handoff) {
      if (decode_ != nullptr) paths.push_back({WorkerPath::Kind::kHandoff, life(place), LifeOf(decode_->capabilities)});
      continue;
    }
    for (size_t to = std::max<size_t>(place, 1); to <= place + 1 && to < chain.size(); ++to) {
      paths.push_back({WorkerPath::Kind::kEdge, life(to - 1), life(to)});
    }
  }
  return paths;
}

std::vector<std::shared_ptr<const LiveWorker>> PrefillRun::SuspectsOf(const JobOutcome& end) const {
  const auto& chain = placement_.chain;
  std::vector<std::shared_ptr<const LiveWorker>> suspects;
  for (const auto& [worker, handoff] : end.failed_over) {
    const size_t place = PlaceOf(worker);
    if (handoff) {
      if (decode_ != nullptr) suspects.push_back(decode_);
      continue;
    }
    if (place > 0) suspects.push_back(chain[place - 1]);
    if (place + 1 < chain.size()) suspects.push_back(chain[place + 1]);
  }
  return suspects;
}

size_t PrefillRun::PlaceOf(int worker) const {
  const auto& chain = placement_.chain;
  return std::find_if(chain.begin(), chain.end(), [&](const auto& live) { return live->index == worker; }) -
         chain.begin();
}

void PrefillRun::MemberFree(int worker) {
  fleet_.FinishJob(*Member(worker), placement_.number);
  MutexLock lock(mu_);
  if (--unfinished_ > 0 || !cancelled_at_) return;
  metrics_.ObserveCancelToFree(clock_.Now() - *cancelled_at_);
}

}  // namespace runahead
