// The attempts of a session: where one fails, and Failover allows it, the next begins with other workers. Nothing of an
// attempt is used by the next but the turn in the queue, and the tokens that the router has. It goes on behind them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/router/session.h"
#include "server/task/co_status.h"

namespace runahead {
namespace {

// How often a lease is renewed while the prompt is computed: a third of its life.
constexpr absl::Duration kRenewPeriod = absl::Seconds(10);

PartitionLookup LookupOf(PartitionSource source) {
  switch (source) {
    case PartitionSource::kSearched:
      return PartitionLookup::kSearched;
    case PartitionSource::kInterpolated:
      return PartitionLookup::kInterpolated;
    case PartitionSource::kExtrapolated:
      return PartitionLookup::kExtrapolated;
    case PartitionSource::kClamped:
      return PartitionLookup::kClamped;
    case PartitionSource::kEven:
      break;
  }
  return PartitionLookup::kEven;
}

void CountRejection(RouterMetrics& metrics, const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) metrics.CountAdmissionRejection(AdmissionRejection::kQueueFull);
  if (absl::IsOutOfRange(status)) metrics.CountAdmissionRejection(AdmissionRejection::kNeverFits);
  if (absl::IsUnavailable(status)) metrics.CountAdmissionRejection(AdmissionRejection::kNoWorkers);
}

}  // namespace

Task<absl::Status> Session::ReachEnd(const std::function<void()>& settled) {
  router_.retry_budget->CountRequest();
  ticket_.emplace(router_.queue, ClaimOfTurn());
  if (role_.later()) ticket_->Admit();  // its call has been admitted
  absl::Status status = co_await PlaceFirst(settled);
  while (status.ok()) {
    status = co_await Attempt(settled);
    if (status.ok()) break;
    RUNAHEAD_CO_RETURN_IF_ERROR(GiveUpAttempt(status));
    status = co_await Place(settled);
    status = failover_.AfterAll(status);
    if (status.ok()) status = failover_.Reconsider();
  }
  co_return status;
}

Task<absl::Status> Session::PlaceFirst(const std::function<void()>& settled) {
  RUNAHEAD_CO_ASSIGN_OR_RETURN(const bool continued, co_await Continue(settled));
  if (continued) co_return absl::OkStatus();
  if (role_.later()) co_return co_await Place(settled);  // its call has been admitted, and it may need no chain
  if (const absl::Status late = CheckDeadline(); !late.ok()) {
    router_.metrics.CountAdmissionRejection(AdmissionRejection::kDeadline);
    co_return late;
  }
  const absl::Status status = co_await Place(settled);
  CountRejection(router_.metrics, status);
  co_return status;
}

Task<absl::Status> Session::Attempt(const std::function<void()>& settled) {
  decode_end_.reset();
  moved_tokens_.reset();
  prefill_needed_ = !continues();
  if (continues()) {
    BeginContinuation();
    co_return co_await Decode();
  }
  RUNAHEAD_CO_RETURN_IF_ERROR(co_await Prefill());
  settled();
  if (answer_->reason()) co_return absl::OkStatus();
  RUNAHEAD_CO_RETURN_IF_ERROR(failover_.Reconsider());  // the news of a death may have come while it was computed
  co_return co_await Decode();
}

absl::Status Session::GiveUpAttempt(const absl::Status& status) {
  const PrefillRun::Failure failure = FailureOf(status);
  const FailoverStage stage = answer_->tokens() == 0 ? FailoverStage::kPrefill : FailoverStage::kDecode;
  RUNAHEAD_RETURN_IF_ERROR(failover_.Judge(status, failure, stage));
  if (failure.fault == JobFault::kFailed && failure.worker) router_.queue.Avoid(*ticket_, failure.worker->index);
  decode_end_ ? report_.DecodeFailed() : report_.Lap(TtftStage::kPrefill);  // what the attempt took
  if (prefill_needed_) run_->Cancel();
  failed_before_ = true;
  BeginFromFirst();
  coming_.reset();
  run_.reset();
  rest_.reset();
  lease_.reset();
  return absl::OkStatus();
}

PrefillRun::Failure Session::FailureOf(const absl::Status& status) const {
  if (cancel_.cancelled() || absl::IsDeadlineExceeded(status)) return {};
  if (decode_end_ && !prefill_needed_) return DecodeFailure(*decode_end_, lease_->live());
  PrefillRun::Failure failure = run_ == nullptr ? PrefillRun::Failure{} : run_->failure();
  if (failure.fault != JobFault::kNone) return failure;
  if (decode_end_) return DecodeFailure(*decode_end_, lease_->live());
  // Nobody had its part yet, or the lease is gone.
  if (absl::IsUnavailable(status)) failure.fault = JobFault::kLost;
  return failure;
}

Task<absl::Status> Session::Prefill() {
  const ChainPlan& plan = run_->placement().plan;
  if (!chain_.parts.empty()) {
    router_.metrics.CountPartitionLookup(PartitionLookup::kGiven);
  } else if (plan.source) {
    router_.metrics.CountPartitionLookup(LookupOf(*plan.source));
  }
  router_.metrics.ChainPlanned(static_cast<int64_t>(prompt_.size()), width());
  if (behind_ && !role_.later()) {
    router_.metrics.CountKnownPromptTokens(RestBy::kChain, lease_->known_tokens());
  }
  PrefillOrder order{request_.request_id(), prompt_, lease_.get(), sampling_};
  if (rules_) order.rules = &*rules_;
  order.trace = report_.trace();
  if (WantsScores()) order.prompt_logprobs = request_.prompt_logprobs();
  if (deadline_ != absl::InfiniteFuture()) order.time_left = deadline_ - router_.clock.Now();
  RUNAHEAD_CO_RETURN_IF_ERROR(run_->Start(order));
  Began(PlanOfRun());
  RUNAHEAD_CO_ASSIGN_OR_RETURN(const v1::FirstToken first, co_await AwaitFirstToken());
  report_.LapPrefill(first);
  const absl::Duration took = absl::Seconds(first.prefill_s());
  // The one token of a later answer says nothing of what a token of a rest takes.
  if (!behind_ || !role_.later()) {
    router_.queue.ChainTook(chain_, width(), lease_ != nullptr ? 1 : 0, took, *router_.table.Get());
  }
  prefill_needed_ = lease_ != nullptr;
  if (answer_->tokens() > 0) co_return absl::OkStatus();  // the answer has a first token, whatever the tail drew
  google::protobuf::RepeatedPtrField<v1::SampledToken> tokens;
  *tokens.Add() = first.token();
  SendTokens(tokens);
  co_return absl::OkStatus();
}

void Session::Began(v1::Plan plan) {
  failover_.WentOn();
  plan_ = std::move(plan);
  if (!std::exchange(told_started_, true)) SendStarted();
  if (!WantsScores()) LetSiblingsBegin();
  report_.Lap(TtftStage::kPlan);
}

Task<absl::StatusOr<v1::FirstToken>> Session::AwaitFirstToken() {
  absl::Time renew_at = router_.clock.Now() + kRenewPeriod;
  while (true) {
    absl::StatusOr<std::optional<v1::FirstToken>> first =
        co_await run_->AwaitFirstToken(std::min(deadline_, renew_at), cancel_);
    RUNAHEAD_CO_RETURN_IF_ERROR(cancel_.status());
    SendScores();
    if (first.ok() && *first) co_return **first;
    RUNAHEAD_CO_RETURN_IF_ERROR(InTime("while the prompt was computed"));
    RUNAHEAD_CO_RETURN_IF_ERROR(first.status());
    if (router_.clock.Now() < renew_at) continue;  // it was for scores
    bool renewed = true;                           // else it is asked again, once the token has been looked for
    if (lease_ != nullptr) {
      RUNAHEAD_CO_ASSIGN_OR_RETURN(renewed, co_await lease_->Renew(cancel_));
    }
    if (renewed) renew_at = router_.clock.Now() + kRenewPeriod;
  }
}

absl::Status Session::InTime(absl::string_view meanwhile) const {
  if (router_.clock.Now() < deadline_) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("the deadline passed ", meanwhile));
}

v1::Plan Session::PlanOfRun() const {
  const Placement& placement = run_->placement();
  v1::Plan plan;
  plan.set_schedule(std::string(ScheduleName(placement.plan.schedule)));
  for (const auto& worker : placement.chain) plan.add_workers(worker->capabilities.name());
  for (int64_t part : placement.plan.parts) plan.add_parts(static_cast<int32_t>(part));
  if (lease_ != nullptr && (max_tokens_ > 1 || behind_)) {
    plan.set_decode_worker(lease_->worker().capabilities.name());
    plan.set_known_tokens(lease_->known_tokens());
    plan.set_known_output_tokens(lease_->known_output_tokens());
  }
  return plan;
}

}  // namespace runahead
