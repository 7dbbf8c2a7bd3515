#include "server/router/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"
#include "server/router/chat_input.h"
#include "server/router/validation.h"
#include "server/router/worker_failure.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "server/rpc/take_memory.h"

namespace runahead {
namespace {

// How often a lease is renewed while the prompt is computed: a third of its life.
constexpr absl::Duration kRenewPeriod = absl::Seconds(10);
// Leases also end without the router's doing (they expire): look again after so long.
constexpr absl::Duration kRetryWhenFull = absl::Milliseconds(250);

// How often a request is placed anew because the decode workers were lost, or began to drain, while they were asked.
constexpr int kReplacements = 3;

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

Session::Session(const RouterParts& router, v1::GenerateRequest request, absl::Time arrival, absl::Time deadline,
                 CancelToken& cancel, ResponseSink& sink, const std::optional<TraceContext>& caller,
                 ByteBudget::Lease memory)
    : router_(router),
      memory_(std::move(memory)),
      request_(std::move(request)),
      deadline_(deadline),
      cancel_(cancel),
      sink_(sink),
      stages_(arrival) {
  if (request_.request_id().empty()) request_.set_request_id(DrawRequestId());
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
  if (status.ok()) {
    status = Place(settled);
    CountRejection(router_.metrics, status);
  }
  if (status.ok()) status = Prefill();
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
  answer_.emplace(router_.tokenizer,
                  std::vector<std::string>(request_.stop().stop().begin(), request_.stop().stop().end()), stop_ids_,
                  max_tokens_);
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

absl::Status Session::Place(const std::function<void()>& settled) {
  const Fleet::Ticket ticket(router_.fleet);
  std::optional<Fleet::AfterFull> after_full;
  int replacements = 0;
  while (true) {
    const uint64_t memory_changes = router_.fleet.memory_changes();
    absl::StatusOr<Placement> placement =
        router_.fleet.Acquire(ticket, chain_, *router_.table.Get(), cancel_, deadline_, after_full);
    Lap(TtftStage::kQueue);
    RUNAHEAD_RETURN_IF_ERROR(placement.status());
    run_ = std::make_shared<PrefillRun>(*std::move(placement), router_.fleet, router_.sequencer, router_.metrics,
                                        router_.clock);
    if (max_tokens_ == 1) return absl::OkStatus();  // the tail's token is all: nothing to hand off
    const int32_t prompt_tokens = static_cast<int32_t>(prompt_.size());
    const DecodeLease::Need need{request_.request_id(), prompt_tokens, prompt_tokens + max_tokens_,
                                 MaxXTokens(run_->placement())};
    absl::StatusOr<std::unique_ptr<DecodeLease>> lease = DecodeLease::Reserve(
        need, ticket, run_->placement().chain, router_.fleet, router_.sequencer, router_.clock, cancel_);
    Lap(TtftStage::kReserve);
    if (lease.ok()) {
      lease_ = *std::move(lease);
      return absl::OkStatus();
    }
    run_.reset();  // others may use the chain while this one waits for memory
    const bool others = router_.fleet.ready_decode() > 0;
    if (absl::IsUnavailable(lease.status()) && others && replacements++ < kReplacements) {
      after_full.reset();
      continue;
    }
    if (!absl::IsResourceExhausted(lease.status())) return lease.status();
    settled();
    after_full = Fleet::AfterFull{memory_changes, kRetryWhenFull, need.total_tokens};
  }
}

absl::Status Session::Prefill() {
  const ChainPlan& plan = run_->placement().plan;
  if (!chain_.parts.empty()) {
    router_.metrics.CountPartitionLookup(PartitionLookup::kGiven);
  } else if (plan.source) {
    router_.metrics.CountPartitionLookup(LookupOf(*plan.source));
  }
  router_.metrics.CountPromptTokens(static_cast<int64_t>(prompt_.size()));
  PrefillOrder order{request_.request_id(), prompt_, lease_.get(), sampling_};
  order.trace = trace_;
  if (deadline_ != absl::InfiniteFuture()) order.time_left = deadline_ - router_.clock.Now();
  RUNAHEAD_RETURN_IF_ERROR(run_->Start(order));
  SendStarted();
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

absl::Status Session::Decode() {
  const LiveWorker& worker = lease_->worker();
  grpc::ClientContext context;
  if (deadline_ != absl::InfiniteFuture()) SetTimeout(context, deadline_ - router_.clock.Now());
  const auto stop_call = [&context] { context.TryCancel(); };
  const CancelToken::Subscription on_cancel = cancel_.OnCancel(stop_call);
  const CancelToken::Subscription on_lost = worker.lost->OnCancel(stop_call);
  const auto reader = worker.decode->Generate(&context, MakeDecodeRequest());
  v1::DecodeReply reply;
  {
    // Tokens come once the whole prompt's KV is in: what happens to the chain after that does not matter.
    const CancelToken::Subscription on_failed = run_->failed().OnCancel(stop_call);
    prefill_needed_ = !ReadTokens(*reader, reply);
  }
  if (!prefill_needed_) {
    SendTokens(reply.tokens());
    while (!answer_->reason() && ReadTokens(*reader, reply)) SendTokens(reply.tokens());
  }
  // The decode worker ends by itself what it knows to be the end; a stop string it does not know.
  // The call goes on where its spans are still to come.
  if (answer_->stopped_by_text()) trace_ != nullptr ? lease_->GiveUp() : context.TryCancel();
  while (ReadTokens(*reader, reply)) {
  }
  return EndOfDecode(FromGrpcStatus(reader->Finish()));
}

bool Session::ReadTokens(DecodeReader& reader, v1::DecodeReply& reply) {
  while (reader.Read(&reply)) {
    if (!reply.has_spans()) return true;
    const LiveWorker& worker = lease_->worker();
    if (trace_ == nullptr) continue;
    trace_->AddWorker(worker.capabilities.name(), reply.spans(), *worker.clock, router_.clock.Now());
  }
  return false;
}

absl::Status Session::EndOfDecode(const absl::Status& status) const {
  const int decode = lease_->worker().index;
  if (answer_->reason()) {
    router_.fleet.ejections().Judge(WorkerRole::kDecode, decode, absl::OkStatus());
    return absl::OkStatus();
  }
  RUNAHEAD_RETURN_IF_ERROR(cancel_.status());
  RUNAHEAD_RETURN_IF_ERROR(InTime("while tokens were generated"));
  RUNAHEAD_RETURN_IF_ERROR(lease_->worker().lost->status());
  if (prefill_needed_) RUNAHEAD_RETURN_IF_ERROR(run_->failed().status());
  const std::string who = absl::StrCat("decode worker ", lease_->worker().capabilities.name());
  absl::Status failure = OfWorker(who, status);
  if (status.ok()) {
    failure =
        absl::InternalError(absl::StrCat(who, " ended after ", answer_->tokens(), " of ", max_tokens_, " tokens"));
  }
  if (IsToBlame(status.ok() ? failure : status)) {
    router_.fleet.ejections().Judge(WorkerRole::kDecode, decode, failure);
  }
  return failure;
}

absl::Status Session::InTime(absl::string_view meanwhile) const {
  if (router_.clock.Now() < deadline_) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("the deadline passed ", meanwhile));
}

v1::DecodeRequest Session::MakeDecodeRequest() const {
  v1::DecodeRequest request;
  *request.mutable_lease() = lease_->id();
  request.set_request_id(request_.request_id());
  if (trace_ != nullptr) request.set_traceparent(trace_->traceparent());
  request.mutable_prompt_ids()->Add(prompt_.begin(), prompt_.end());
  request.set_first_token(first_token_);
  request.set_max_tokens(max_tokens_);
  *request.mutable_sampling() = sampling_;
  request.mutable_stop_ids()->Add(stop_ids_.begin(), stop_ids_.end());
  return request;
}

void Session::SendStarted() {
  const Placement& placement = run_->placement();
  v1::GenerateResponse response;
  v1::Started& started = *response.mutable_started();
  started.set_request_id(request_.request_id());
  started.set_seed(sampling_.seed());
  started.set_prompt_tokens(static_cast<int32_t>(prompt_.size()));
  v1::Plan& plan = *started.mutable_plan();
  plan.set_schedule(std::string(ScheduleName(placement.plan.schedule)));
  for (const auto& worker : placement.chain) plan.add_workers(worker->capabilities.name());
  for (int64_t part : placement.plan.parts) plan.add_parts(static_cast<int32_t>(part));
  if (lease_ != nullptr) plan.set_decode_worker(lease_->worker().capabilities.name());
  plan_ = plan;
  sink_.Send(std::move(response));
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
  sink_.Send(std::move(response));
}

RequestRecord Session::Record(const absl::Status& status) const {
  RequestRecord record;
  record.request_id = request_.request_id();
  record.trace_id = trace_id_;
  record.status = status;
  record.plan = plan_;
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
