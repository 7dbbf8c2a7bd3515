#include "server/router/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"
#include "server/router/chat_input.h"
#include "server/router/validation.h"
#include "server/rpc/take_memory.h"

namespace runahead {
namespace {

// How often a lease is renewed while the prompt is computed: a third of its life.
constexpr absl::Duration kRenewPeriod = absl::Seconds(10);
// Leases also end without the router's doing (they expire): look again after so long.
constexpr absl::Duration kRetryWhenFull = absl::Milliseconds(250);

// How often a request is placed anew because the decode workers were lost, or began to drain, while they were asked.
constexpr int kReplacements = 3;
// For so long news of a loss is awaited when a worker that counts as ready did not answer.
constexpr absl::Duration kNewsOfLoss = absl::Seconds(1);

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

v1::GenerateRequest WithId(v1::GenerateRequest request) {
  if (request.request_id().empty()) request.set_request_id(DrawRequestId());
  return request;
}

}  // namespace

Session::Session(const RouterParts& router, v1::GenerateRequest request, absl::Time arrival, absl::Time deadline,
                 CancelToken& cancel, ResponseSink& sink, const std::optional<TraceContext>& caller,
                 ByteBudget::Lease memory)
    : router_(router),
      memory_(std::move(memory)),
      request_(WithId(std::move(request))),
      deadline_(deadline),
      cancel_(cancel),
      sink_(sink),
      stages_(arrival),
      failover_(request_.request_id(), router.fleet, *router.retry_budget, router.metrics) {
  sampling_ = request_.sampling();
  if (!sampling_.has_seed()) sampling_.set_seed(RandomBits64());
  trace_ = router_.tracer->Begin(request_.request_id(), caller, arrival);
  if (caller) trace_id_ = caller->trace_id;
  if (trace_ != nullptr) trace_id_ = trace_->trace_id();
}

absl::Status Session::Run(const std::function<void()>& settled) {
  Lap(TtftStage::kQueue);
  absl::Status status = cancel_.status();  // the client may be gone since it asked
  if (status.ok()) status = Prepare();
  if (status.ok()) status = ReachFirstToken(settled);
  ticket_.reset();
  settled();
  if (status.ok() && !answer_->reason()) status = Decode();
  if (status.ok()) Finish();
  if (run_ != nullptr && prefill_needed_) run_->Cancel();
  EndTrace();
  run_.reset();
  lease_.reset();
  return status;
}

void Session::Lap(TtftStage stage) {
  const absl::Time now = router_.clock.Now();
  if (trace_ != nullptr) trace_->Add(TtftStageName(stage), stages_.last(), now);
  stages_.Lap(stage, now);
}

void Session::LapPrefill(const v1::FirstToken& first) {
  const absl::Time now = router_.clock.Now();
  absl::Time begin = stages_.last();
  stages_.LapPrefill(absl::Seconds(first.queue_s()), absl::Seconds(first.prefill_s()), now);
  if (trace_ == nullptr) return;
  for (const TtftStage stage : {TtftStage::kWorkerQueue, TtftStage::kPrefill, TtftStage::kFirstToken}) {
    const absl::Time end = begin + stages_.spent(stage);
    trace_->Add(TtftStageName(stage), begin, end);
    begin = end;
  }
}

// Before the client hears of the end, so that it finds the trace.
void Session::EndTrace() {
  if (trace_ == nullptr) return;
  const absl::Time now = router_.clock.Now();
  if (answer_ && answer_->tokens() > 0) trace_->Add("decode", stages_.last(), now, answer_->tokens());
  trace_->Add("request", stages_.start(), now, static_cast<int64_t>(prompt_.size()));
  trace_.reset();
}

absl::Status Session::Prepare() {
  RUNAHEAD_ASSIGN_OR_RETURN(prompt_, Tokenize());
  request_.clear_input();  // its ids stand for it from now on
  RUNAHEAD_RETURN_IF_ERROR(TakeMemory(memory_, kBytesPerId * static_cast<int64_t>(prompt_.size())));
  RUNAHEAD_RETURN_IF_ERROR(CheckTokens(prompt_, router_.model));
  const int64_t tokens = static_cast<int64_t>(prompt_.size());
  RUNAHEAD_ASSIGN_OR_RETURN(max_tokens_, ResolveMaxTokens(request_, tokens, router_.model));
  chain_ = ResolveChain(request_, tokens, router_.schedule);
  RUNAHEAD_RETURN_IF_ERROR(CheckChain(chain_, router_.fleet.line_length()));
  stop_ids_.assign(request_.stop().stop_ids().begin(), request_.stop().stop_ids().end());
  if (!request_.stop().ignore_eos()) {
    const absl::Span<const int32_t> ends = router_.tokenizer->end_ids();
    stop_ids_.insert(stop_ids_.end(), ends.begin(), ends.end());
  }
  // By the ids alone, so that they are answered as the text or chat is that they came from.
  const bool goes_on = !router_.tokenizer->IsSpecial(prompt_.back());
  answer_.emplace(router_.tokenizer,
                  std::vector<std::string>(request_.stop().stop().begin(), request_.stop().stop().end()), stop_ids_,
                  max_tokens_, goes_on);
  Lap(TtftStage::kTokenize);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Session::Tokenize() const {
  RUNAHEAD_ASSIGN_OR_RETURN(const LargeTextTurns::Turn turn,
                            router_.large_text_turns->Await(TextBytes(request_), cancel_));
  const auto keep_going = [this]() -> absl::Status {
    RUNAHEAD_RETURN_IF_ERROR(cancel_.status());
    return InTime("while the prompt was tokenized");
  };
  switch (request_.input_case()) {
    case v1::GenerateRequest::kPrompt:
      return router_.tokenizer->Encode(request_.prompt(), {}, keep_going);
    case v1::GenerateRequest::kChat: {
      RUNAHEAD_RETURN_IF_ERROR(router_.chat_template.status());
      return EncodeChat(*router_.chat_template, *router_.tokenizer, request_.chat(), router_.clock.Now(), keep_going);
    }
    default:
      return std::vector<int32_t>(request_.token_ids().ids().begin(), request_.token_ids().ids().end());
  }
}

absl::Status Session::ReachFirstToken(const std::function<void()>& settled) {
  router_.retry_budget->CountRequest();
  ticket_.emplace(router_.fleet);
  absl::Status status = Place(settled);
  CountRejection(router_.metrics, status);
  while (status.ok()) {
    status = Prefill();
    if (status.ok()) break;
    const PrefillRun::Failure failure = FailureOf(status);
    RUNAHEAD_RETURN_IF_ERROR(failover_.Judge(status, failure));
    if (failure.fault == JobFault::kFailed && failure.worker) router_.fleet.Avoid(*ticket_, failure.worker->index);
    Lap(TtftStage::kPrefill);  // what the attempt took
    run_->Cancel();
    run_.reset();
    lease_.reset();
    RUNAHEAD_RETURN_IF_ERROR(failover_.AwaitNews(cancel_, router_.clock, deadline_));
    status = failover_.AfterAll(Place(settled));
  }
  return status;
}

absl::Status Session::Place(const std::function<void()>& settled) {
  std::optional<Fleet::AfterFull> after_full;
  std::optional<absl::Time> absence_ends;
  int replacements = 0;
  while (true) {
    const uint64_t memory_changes = router_.fleet.memory_changes(), returns = router_.fleet.returns();
    absl::StatusOr<Placement> placement =
        router_.fleet.Acquire(*ticket_, chain_, *router_.table.Get(), cancel_, deadline_, after_full);
    Lap(TtftStage::kQueue);
    absl::Status status = placement.status();
    if (status.ok()) {
      run_ = std::make_shared<PrefillRun>(*std::move(placement), router_.fleet, router_.sequencer, router_.metrics,
                                          router_.clock);
      status = TakeLease();
    }
    if (status.ok()) {
      router_.fleet.Settled(*ticket_);
      return absl::OkStatus();
    }
    const bool asked = run_ != nullptr;
    run_.reset();  // others may use the chain while this one waits
    RUNAHEAD_RETURN_IF_ERROR(cancel_.status());
    after_full.reset();
    if (asked && absl::IsResourceExhausted(status)) {
      settled();
      after_full = Fleet::AfterFull{memory_changes, kRetryWhenFull, static_cast<int64_t>(prompt_.size()) + max_tokens_};
      continue;
    }
    if (!absl::IsUnavailable(status)) return status;
    const bool others = asked && router_.fleet.ready_decode() > 0;
    if (others && replacements++ < kReplacements) continue;
    settled();
    if (!absence_ends) absence_ends = router_.clock.Now() + router_.absence_timeout;
    RUNAHEAD_RETURN_IF_ERROR(AwaitReturn(status, returns, others ? kNewsOfLoss : absl::ZeroDuration(), *absence_ends));
  }
}

absl::Status Session::TakeLease() {
  if (max_tokens_ == 1) return absl::OkStatus();  // the tail's token is all: nothing to hand off
  const int32_t prompt_tokens = static_cast<int32_t>(prompt_.size());
  const DecodeLease::Need need{request_.request_id(), prompt_tokens, prompt_tokens + max_tokens_,
                               MaxXTokens(run_->placement())};
  absl::StatusOr<std::unique_ptr<DecodeLease>> lease = DecodeLease::Reserve(
      need, *ticket_, run_->placement().chain, router_.fleet, router_.sequencer, router_.clock, cancel_);
  Lap(TtftStage::kReserve);
  RUNAHEAD_RETURN_IF_ERROR(lease.status());
  lease_ = *std::move(lease);
  return absl::OkStatus();
}

absl::Status Session::AwaitReturn(const absl::Status& absent, uint64_t returns, absl::Duration at_least,
                                  absl::Time until) {
  const absl::StatusOr<bool> returned = router_.fleet.AwaitReturn(*ticket_, chain_, returns, router_.absence_timeout,
                                                                  at_least, cancel_, std::min(deadline_, until));
  Lap(TtftStage::kQueue);
  RUNAHEAD_RETURN_IF_ERROR(returned.status());
  if (*returned) return absl::OkStatus();
  if (router_.clock.Now() < deadline_) return absent;
  return absl::DeadlineExceededError(
      absl::StrCat("the deadline passed while the request waited for workers: ", absent.message()));
}

absl::Status Session::Prefill() {
  const ChainPlan& plan = run_->placement().plan;
  if (!chain_.parts.empty()) {
    router_.metrics.CountPartitionLookup(PartitionLookup::kGiven);
  } else if (plan.source) {
    router_.metrics.CountPartitionLookup(LookupOf(*plan.source));
  }
  router_.metrics.ChainPlanned(static_cast<int64_t>(prompt_.size()), width());
  PrefillOrder order{request_.request_id(), prompt_, lease_.get(), sampling_};
  order.trace = trace_;
  if (deadline_ != absl::InfiniteFuture()) order.time_left = deadline_ - router_.clock.Now();
  RUNAHEAD_RETURN_IF_ERROR(run_->Start(order));
  failover_.WentOn();
  plan_ = PlanOfRun();
  if (!std::exchange(told_started_, true)) SendStarted();
  Lap(TtftStage::kPlan);
  RUNAHEAD_ASSIGN_OR_RETURN(const v1::FirstToken first, AwaitFirstToken());
  LapPrefill(first);
  first_token_ = first.token().id();
  google::protobuf::RepeatedPtrField<v1::SampledToken> tokens;
  *tokens.Add() = first.token();
  SendTokens(tokens);
  Lap(TtftStage::kFirstToken);
  ObserveFirstToken();
  prefill_needed_ = lease_ != nullptr;
  return absl::OkStatus();
}

absl::StatusOr<v1::FirstToken> Session::AwaitFirstToken() {
  absl::Time renew_at = router_.clock.Now() + kRenewPeriod;
  while (true) {
    absl::StatusOr<std::optional<v1::FirstToken>> first = run_->AwaitFirstToken(std::min(deadline_, renew_at), cancel_);
    RUNAHEAD_RETURN_IF_ERROR(cancel_.status());
    if (first.ok() && *first) return **first;
    RUNAHEAD_RETURN_IF_ERROR(InTime("while the prompt was computed"));
    RUNAHEAD_RETURN_IF_ERROR(first.status());
    bool renewed = true;  // else it is asked again, once the token has been looked for
    if (lease_ != nullptr) {
      RUNAHEAD_ASSIGN_OR_RETURN(renewed, lease_->Renew(cancel_));
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
  if (lease_ != nullptr) plan.set_decode_worker(lease_->worker().capabilities.name());
  return plan;
}

void Session::SendStarted() {
  router_.metrics.CountPromptTokens(static_cast<int64_t>(prompt_.size()));
  v1::GenerateResponse response;
  v1::Started& started = *response.mutable_started();
  started.set_request_id(request_.request_id());
  started.set_seed(sampling_.seed());
  started.set_prompt_tokens(static_cast<int32_t>(prompt_.size()));
  *started.mutable_plan() = plan_;
  sink_.Send(std::move(response));
}

PrefillRun::Failure Session::FailureOf(const absl::Status& status) const {
  if (cancel_.cancelled() || absl::IsDeadlineExceeded(status)) return {};
  const PrefillRun::Failure failure = run_->failure();
  // Nobody had its part yet, or the lease is gone.
  const bool lost = failure.fault == JobFault::kNone && absl::IsUnavailable(status);
  return lost ? PrefillRun::Failure{JobFault::kLost, nullptr} : failure;
}

void Session::SendTokens(const google::protobuf::RepeatedPtrField<v1::SampledToken>& tokens) {
  v1::GenerateResponse response;
  for (const v1::SampledToken& token : tokens) answer_->Feed(token, *response.mutable_tokens());
  const int fresh = response.tokens().ids_size();
  if (fresh == 0) return;
  const absl::Time now = router_.clock.Now();
  if (answer_->tokens() == fresh) {
    first_token_at_ = now;
  } else {
    for (int i = 0; i < fresh; ++i) router_.metrics.ObserveInterTokenLatency((now - last_token_at_) / fresh);
  }
  last_token_at_ = now;
  router_.metrics.CountGeneratedTokens(fresh);
  sink_.Send(std::move(response));
}

void Session::ObserveFirstToken() {
  for (int stage = 0; stage < kTtftStages; ++stage) {
    const auto which = static_cast<TtftStage>(stage);
    router_.metrics.ObserveTtftStage(which, width(), stages_.spent(which));
  }
  router_.metrics.ObserveTimeToFirstToken(static_cast<int64_t>(prompt_.size()), width(), stages_.total());
}

absl::Duration Session::PerToken() const {
  if (answer_->tokens() < 2) return absl::ZeroDuration();
  return (last_token_at_ - first_token_at_) / (answer_->tokens() - 1);
}

void Session::Finish() {
  v1::GenerateResponse response;
  v1::Finished& finished = *response.mutable_finished();
  finished.set_text(answer_->Finish());  // may find a stop string, so before the reason
  finished.set_reason(*answer_->reason());
  finished.mutable_usage()->set_prompt_tokens(static_cast<int32_t>(prompt_.size()));
  finished.mutable_usage()->set_completion_tokens(answer_->tokens());
  v1::Timing& timing = *finished.mutable_timing();
  timing.set_ttft_s(absl::ToDoubleSeconds(stages_.total()));
  timing.set_tpot_s(absl::ToDoubleSeconds(PerToken()));
  if (answer_->tokens() > 1) router_.metrics.ObserveTimePerOutputToken(PerToken());
  for (int stage = 0; stage < kTtftStages; ++stage) {
    const auto which = static_cast<TtftStage>(stage);
    (*timing.mutable_stages())[std::string(TtftStageName(which))] = absl::ToDoubleSeconds(stages_.spent(which));
  }
  finished.set_failovers(failover_.count());
  if (failover_.count() > 0) *finished.mutable_plan() = plan_;
  sink_.Send(std::move(response));
}

RequestRecord Session::Record(const absl::Status& status) const {
  RequestRecord record;
  record.request_id = request_.request_id();
  record.trace_id = trace_id_;
  record.status = status;
  record.plan = plan_;
  record.failovers = failover_.count();
  record.prompt_tokens = static_cast<int64_t>(prompt_.size());
  if (answer_) {
    record.finish_reason = answer_->reason().value_or(v1::FINISH_REASON_UNSPECIFIED);
    record.generated_tokens = answer_->tokens();
    record.tpot = PerToken();
  }
  for (int stage = 0; stage < kTtftStages; ++stage) {
    const auto which = static_cast<TtftStage>(stage);
    record.stages.emplace_back(TtftStageName(which), absl::ToDoubleSeconds(stages_.spent(which)));
  }
  if (record.generated_tokens > 0) record.ttft = stages_.total();
  record.total = router_.clock.Now() - stages_.start();
  if (router_.log_prompts) {
    // Each token is a character or more, but for parts of one.
    const absl::Span<const int32_t> first =
        absl::MakeSpan(prompt_).first(std::min<size_t>(prompt_.size(), 4 * kLoggedPromptCharacters));
    record.prompt = LoggedPrompt(router_.tokenizer->Decode(first, /*skip_special=*/false));
  }
  return record;
}

}  // namespace runahead
