// A session that waits for workers and memory.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/router/session.h"
#include "server/rpc/status.h"
#include "server/task/co_status.h"

namespace runahead {
namespace {

// Leases also end without the router's doing (they expire): look again after so long.
constexpr absl::Duration kRetryWhenFull = absl::Milliseconds(250);

// A request that would come too late is not to be sent again before so long.
constexpr absl::Duration kLeastRetry = absl::Seconds(1);

// How often a request is placed anew because the decode workers were lost, or began to drain, while they were asked.
constexpr int kReplacements = 3;
// For so long news of a loss is awaited when a worker that counts as ready did not answer.
constexpr absl::Duration kNewsOfLoss = absl::Seconds(1);

}  // namespace

Claim Session::ClaimOfTurn() const {
  Claim claim;
  claim.tenant = tenant_;
  const auto weight = router_.tenant_weights.find(tenant_);
  if (grant_.given()) {
    claim.weight = grant_.limits().weight;
    claim.listed = true;
  } else if (weight != router_.tenant_weights.end()) {
    claim.weight = weight->second;
    claim.listed = true;
  }
  if (request_.priority() == v1::PRIORITY_LOW) claim.priority = RequestPriority::kLow;
  claim.tokens = static_cast<int64_t>(prompt_.size()) + max_tokens_;
  return claim;
}

absl::Status Session::CheckDeadline() const {
  if (deadline_ == absl::InfiniteFuture()) return absl::OkStatus();
  const absl::Duration left = deadline_ - router_.clock.Now();
  const absl::Duration expected =
      router_.queue.ExpectFirstToken(*ticket_, chain_, *router_.table.Get(), max_tokens_ > 1);
  if (expected <= left || left <= absl::ZeroDuration()) return absl::OkStatus();  // who is late is told so elsewhere
  const auto shown = [](absl::Duration time) {
    return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(100)));
  };
  return WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat("the first token is expected in ", shown(expected),
                                                                  ", and the deadline is in ", shown(left))),
                        std::max(kLeastRetry, expected - left));
}

Task<absl::Status> Session::Place(const std::function<void()>& settled) {
  std::optional<FleetQueue::AfterFull> after_full;
  std::optional<absl::Time> absence_ends;
  int replacements = 0;
  while (true) {
    const uint64_t decode_changes = router_.queue.decode_changes(), returns = router_.queue.returns();
    const std::shared_ptr<const PartitionTable> table = router_.table.Get();
    absl::StatusOr<Placement> placement =
        co_await On(*router_.work, router_.queue.Acquire(*ticket_, chain_, *table, cancel_, deadline_, after_full));
    report_.Lap(TtftStage::kQueue);
    absl::Status status = placement.status();
    if (status.ok()) {
      run_ = std::make_shared<PrefillRun>(*std::move(placement), router_.fleet, router_.sequencer, router_.metrics,
                                          router_.clock);
      RUNAHEAD_CO_ASSIGN_OR_RETURN(const std::optional<bool> continued,
                                   co_await LookAgain(after_full.has_value(), settled));
      if (!continued) after_full.reset();
      if (!continued) continue;
      if (*continued) co_return absl::OkStatus();
      status = co_await TakeLease();
      if (!status.ok() && BeginFromFirst(status)) {
        run_.reset();
        coming_.reset();
        RUNAHEAD_CO_RETURN_IF_ERROR(cancel_.status());
        after_full.reset();
        continue;
      }
    }
    if (status.ok()) {
      router_.queue.Settled(*ticket_);
      co_return absl::OkStatus();
    }
    const bool asked = run_ != nullptr;
    const DecodeNeed need = asked ? NeedOfDecode().of_worker() : DecodeNeed{};
    run_.reset();  // others may use the chain while this one waits
    coming_.reset();
    RUNAHEAD_CO_RETURN_IF_ERROR(cancel_.status());
    after_full.reset();
    if (asked && absl::IsResourceExhausted(status)) {
      settled();
      after_full = FleetQueue::AfterFull{decode_changes, kRetryWhenFull, need};
      continue;
    }
    if (!absl::IsUnavailable(status)) co_return status;
    const bool others = asked && router_.fleet.ready_decode() > 0;
    if (others && replacements++ < kReplacements) continue;
    settled();
    if (!absence_ends) absence_ends = router_.clock.Now() + router_.absence_timeout;
    const WorkerRole missing = asked ? WorkerRole::kDecode : WorkerRole::kPrefill;
    const absl::Duration at_least = others ? kNewsOfLoss : absl::ZeroDuration();
    RUNAHEAD_CO_RETURN_IF_ERROR(co_await AwaitReturn(status, missing, returns, at_least, *absence_ends));
  }
}

DecodeLease::Need Session::NeedOfAnswer() const {
  const auto prompt_tokens = static_cast<int32_t>(prompt_.size());
  DecodeLease::Need need{request_.request_id(), prompt_tokens, prompt_tokens + max_tokens_};
  need.salt = salt_;
  need.not_kept = request_.no_cache() || !router_.known->on();
  if (router_.outputs->mode() == ReserveMode::kExpected) {
    need.expected_tokens = prompt_tokens + expected_output_;
    need.parked_first = request_.priority() == v1::PRIORITY_LOW;
  }
  return need;
}

DecodeLease::Need Session::NeedOfDecode() const {
  DecodeLease::Need need = NeedOfAnswer();
  need.max_x_tokens = MaxXTokens(run_->placement());
  // A later answer begins with the prompt that an earlier one left, at a slot that is free: one token at most is
  // computed before.
  const bool may_continue = role_.later() && router_.known->on() && !request_.no_cache() && !request_.has_experiment();
  if (!may_continue) need.lead = run_->placement().first_token_in;
  need.known = KnownToBring();
  return need;
}

// What it brings or keeps is worth no waiting. X would come in place of KV: without a step nobody makes KV of it.
DecodeLease::Need Session::NeedOfOneToken() const {
  DecodeLease::Need need = NeedOfAnswer();
  need.known = KnownToBring();
  need.keeps = !need.known;
  need.avoid_silent = true;
  need.patience = router_.keep_patience;
  return need;
}

std::optional<DecodeLease::Need::Known> Session::KnownToBring() const {
  if (!behind_) return std::nullopt;
  return DecodeLease::Need::Known{behind_->worker, static_cast<int32_t>(behind_->least_tokens), prompt_, true};
}

// An answer that has tokens already is longer than these, whatever others took.
void Session::ExpectOutput() {
  expected_output_ = std::max(router_.outputs->Expect(static_cast<int64_t>(prompt_.size()), max_tokens_),
                              std::min(max_tokens_, answer_->tokens() + 1));
}

Task<absl::Status> Session::TakeLease() {
  ExpectOutput();
  const bool decodes = max_tokens_ > 1;  // else the tail's token is all, or is not wanted
  if (!decodes && !behind_) co_return co_await TakeLeaseToKeep();
  const DecodeLease::Need need = decodes ? NeedOfDecode() : NeedOfOneToken();
  absl::StatusOr<std::unique_ptr<DecodeLease>> lease = co_await DecodeLease::Reserve(
      need, *ticket_, run_->placement().chain, router_.queue, router_.fleet, router_.sequencer, router_.clock, cancel_);
  report_.Lap(TtftStage::kReserve);
  RUNAHEAD_CO_RETURN_IF_ERROR(lease.status());
  RUNAHEAD_CO_RETURN_IF_ERROR(CheckStepsBehind(**lease));
  lease_ = *std::move(lease);
  if (behind_) CountContinuation(absl::OkStatus(), *behind_);
  PromptGoesToLease();
  co_return absl::OkStatus();
}

// The request itself needs none: it neither waits for one nor ends where there is none, nor is it tried again twice
// where that went wrong.
Task<absl::Status> Session::TakeLeaseToKeep() {
  if (max_tokens_ == 1 && MayLeavePrompt() && !failed_before_) {
    const DecodeLease::Need need = NeedOfOneToken();
    absl::StatusOr<std::unique_ptr<DecodeLease>> lease =
        co_await DecodeLease::Reserve(need, *ticket_, run_->placement().chain, router_.queue, router_.fleet,
                                      router_.sequencer, router_.clock, cancel_);
    report_.Lap(TtftStage::kReserve);
    RUNAHEAD_CO_RETURN_IF_ERROR(cancel_.status());
    if (lease.ok()) lease_ = *std::move(lease);
  }
  PromptGoesToLease();
  co_return absl::OkStatus();
}

Task<absl::Status> Session::AwaitReturn(const absl::Status& absent, WorkerRole missing, uint64_t returns,
                                        absl::Duration at_least, absl::Time until) {
  const absl::StatusOr<bool> returned = co_await router_.queue.AwaitReturn(
      *ticket_, chain_, missing, returns, router_.absence_timeout, at_least, cancel_, std::min(deadline_, until));
  report_.Lap(TtftStage::kQueue);
  RUNAHEAD_CO_RETURN_IF_ERROR(returned.status());
  if (*returned) co_return absl::OkStatus();
  if (router_.clock.Now() < deadline_) co_return absent;
  co_return absl::DeadlineExceededError(
      absl::StrCat("the deadline passed while the request waited for workers: ", absent.message()));
}

}  // namespace runahead
