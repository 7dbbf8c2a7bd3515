#include "server/router/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/random.h"
#include "server/router/chat_input.h"
#include "server/router/draw_rules.h"
#include "server/router/request_timeout.h"
#include "server/router/validation.h"
#include "server/rpc/status.h"
#include "server/rpc/take_memory.h"
#include "server/task/co_status.h"

namespace runahead {
namespace {

v1::GenerateRequest WithId(v1::GenerateRequest request) {
  if (request.request_id().empty()) request.set_request_id(DrawRequestId());
  return request;
}

}  // namespace

Session::Session(const RouterParts& router, v1::GenerateRequest request, absl::Time arrival, absl::Time deadline,
                 CancelToken& cancel, ResponseSink& sink, const std::optional<TraceContext>& caller,
                 ByteBudget::Lease memory, std::string tenant, KeyGrant grant, AnswerRole role)
    : router_(router),
      role_(role),
      memory_(std::move(memory)),
      tenant_(std::move(tenant)),
      grant_(std::move(grant)),
      salt_(grant_.given() ? tenant_ : std::string()),
      request_(WithId(std::move(request))),
      chat_(request_.has_chat()),
      deadline_(std::min(deadline, TimeoutOf(request_, arrival))),
      is_timeout_(deadline_ < deadline),
      cancel_(cancel),
      sink_(sink),
      report_(router.metrics, router.clock, arrival,
              role.later() ? nullptr : router.tracer->Begin(request_.request_id(), caller, arrival), caller),
      failover_(request_.request_id(), router.fleet, *router.retry_budget, router.metrics) {
  sampling_ = request_.sampling();
  if (!sampling_.has_seed()) sampling_.set_seed(RandomBits64());
}

Task<absl::Status> Session::Run(std::function<void()> settled) {
  report_.Lap(TtftStage::kQueue);
  absl::Status status = cancel_.status();  // the client may be gone since it asked
  if (status.ok()) status = co_await Prepare();
  if (status.ok()) {
    if (!answer_->reason() || WantsScores()) {
      status = co_await ReachEnd(settled);
    } else {
      told_started_ = true;
      SendStarted();  // the client has all of it but the end
    }
  }
  ticket_.reset();
  settled();
  const bool leaves = status.ok() && PromptOnItsWay();
  if (!leaves) coming_.reset();
  LearnOutput(status);
  LearnBeginning();  // before the client hears of the end: what it sends next may begin so
  SettleGrant();     // before the client hears of the end: it may send the next one then
  if (status.ok()) Finish();
  if (run_ != nullptr && prefill_needed_ && !leaves) run_->Cancel();
  const absl::Status told = NamingTheDeadline(WithWayOn(status));
  report_.EndTrace(Traced(told));
  rest_.reset();
  if (leaves) co_return told;
  run_.reset();
  lease_.reset();
  co_return told;
}

std::unique_ptr<LeavingPrompt> Session::HandOverPrompt() {
  if (run_ == nullptr) return nullptr;
  v1::DecodeRequest request = MakeDecodeRequest();
  request.clear_rules();
  request.set_max_tokens(1);
  ByteBudget::Lease memory = memory_.Split(kBytesPerId * static_cast<int64_t>(prompt_.size()));
  return std::make_unique<LeavingPrompt>(
      LeavingPrompt::Parts{std::move(prompt_), salt_, std::move(memory), std::move(request), std::move(lease_),
                           std::move(run_), std::move(coming_), deadline_},
      *router_.known, router_.fleet, router_.clock);
}

Task<absl::Status> Session::Prepare() {
  RUNAHEAD_CO_ASSIGN_OR_RETURN(prompt_, co_await On(*router_.work, Tokenize()));
  request_.clear_input();  // its ids stand for it from now on
  Truncate();
  if (HasDrawRules(request_)) {
    RUNAHEAD_CO_RETURN_IF_ERROR(co_await On(*router_.work, TakeRules()));
  }
  RUNAHEAD_CO_RETURN_IF_ERROR(TakePrompt());
  if (!request_.output_ids().empty()) {
    RUNAHEAD_CO_RETURN_IF_ERROR(co_await On(*router_.work, TakeOutput()));
  }
  report_.Lap(TtftStage::kTokenize);
  co_return absl::OkStatus();
}

void Session::Truncate() {
  if (!request_.has_truncate_prompt()) return;
  const auto most = static_cast<size_t>(request_.truncate_prompt());
  if (prompt_.size() > most) prompt_ = std::vector<int32_t>(prompt_.end() - static_cast<int64_t>(most), prompt_.end());
}

Task<absl::Status> Session::TakeRules() {
  RUNAHEAD_CO_ASSIGN_OR_RETURN(rules_, ResolveDrawRules(request_, *router_.tokenizer, router_.model));
  co_return absl::OkStatus();
}

absl::Status Session::TakePrompt() {
  const int64_t tokens = static_cast<int64_t>(prompt_.size());
  if (!role_.later()) RUNAHEAD_RETURN_IF_ERROR(TakeMemory(memory_, kBytesPerId * tokens));
  RUNAHEAD_RETURN_IF_ERROR(CheckTokens("prompt", prompt_, router_.model));
  RUNAHEAD_ASSIGN_OR_RETURN(max_tokens_, ResolveMaxTokens(request_, tokens, router_.model));
  if (const int64_t most = grant_.limits().max_tokens; most > 0 && !request_.stop().has_max_tokens()) {
    max_tokens_ = static_cast<int32_t>(std::min<int64_t>(max_tokens_, most));
  }
  if (request_.stop().min_tokens() > max_tokens_) {
    return InvalidField("stop.min_tokens", absl::StrCat(request_.stop().min_tokens(), " is more than the ", max_tokens_,
                                                        " tokens that the answer may have"));
  }
  chain_ = ResolveChain(request_, tokens, router_.schedule);
  RUNAHEAD_RETURN_IF_ERROR(CheckChain(chain_, router_.fleet.line_length()));
  if (!role_.later()) RUNAHEAD_RETURN_IF_ERROR(TakeForAnswers());
  stop_ids_.assign(request_.stop().stop_ids().begin(), request_.stop().stop_ids().end());
  if (!request_.stop().ignore_eos()) {
    const absl::Span<const int32_t> ends = router_.tokenizer->end_ids();
    stop_ids_.insert(stop_ids_.end(), ends.begin(), ends.end());
  }
  // By the ids alone, so that they are answered as the text or chat is that they came from.
  const bool goes_on = !router_.tokenizer->IsSpecial(prompt_.back());
  answer_.emplace(router_.tokenizer,
                  std::vector<std::string>(request_.stop().stop().begin(), request_.stop().stop().end()), stop_ids_,
                  max_tokens_, goes_on, request_.stop().min_tokens());
  return absl::OkStatus();
}

absl::Status Session::TakeForAnswers() {
  const int64_t tokens = static_cast<int64_t>(prompt_.size());
  const int64_t scores = WantsScores() ? tokens * (request_.prompt_logprobs() + 1) : 0;
  const int64_t of_each =
      kBytesPerId * tokens + kBytesPerOutputId * max_tokens_ + (rules_ ? DrawRulesBytes(*rules_) : 0);
  const int64_t of_later = of_each + static_cast<int64_t>(request_.ByteSizeLong());
  const int64_t later = role_.answers - 1;
  RUNAHEAD_RETURN_IF_ERROR(TakeMemory(memory_, of_each + kBytesPerPromptLogprob * scores + later * of_later));
  RUNAHEAD_RETURN_IF_ERROR(grant_.TakeTokens(tokens + int64_t{role_.answers} * max_tokens_));
  if (role_.siblings == nullptr) return absl::OkStatus();
  std::vector<AnswerShare> shares;
  for (int64_t i = 0; i < later; ++i) shares.push_back({memory_.Split(of_later), grant_.Share()});
  role_.siblings->Took(prompt_, max_tokens_, std::move(shares));
  return absl::OkStatus();
}

// Fed as they would come, they leave the answer as it was when the client lost it: what is certain of their text was
// sent with them, and what is held back is held back again.
Task<absl::Status> Session::TakeOutput() {
  const auto output = std::exchange(*request_.mutable_output_ids(), {});  // whose memory goes with it
  brought_ = output.size();
  for (int i = 0; i < output.size(); ++i) {
    if (answer_->reason()) {
      co_return InvalidField(absl::StrCat("output_ids[", i, "]"),
                             absl::StrCat("it stands behind the answer's end, which is at ", i - 1, ": max_tokens is ",
                                          max_tokens_, ", or an id or a stop string ends it there"));
    }
    v1::SampledToken token;
    token.set_id(output[i]);
    v1::Tokens known;
    answer_->Feed(token, known);
  }
  co_return absl::OkStatus();
}

Task<absl::StatusOr<std::vector<int32_t>>> Session::Tokenize() const {
  RUNAHEAD_CO_ASSIGN_OR_RETURN(const LargeTextTurns::Turn turn,
                               co_await router_.large_text_turns->Await(TextBytes(request_), cancel_));
  co_return Encode();
}

absl::StatusOr<std::vector<int32_t>> Session::Encode() const {
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

void Session::SendStarted() {
  if (!role_.later()) router_.metrics.CountPromptTokens(static_cast<int64_t>(prompt_.size()));
  v1::GenerateResponse response;
  v1::Started& started = *response.mutable_started();
  started.set_request_id(request_.request_id());
  started.set_seed(sampling_.seed());
  started.set_prompt_tokens(static_cast<int32_t>(prompt_.size()));
  *started.mutable_plan() = plan_;
  sink_.Send(std::move(response));
  if (request_.has_prompt_logprobs()) SendFirstOfPrompt();
}

// Nothing comes before it that could give it anything: it is there for its text.
void Session::SendFirstOfPrompt() {
  v1::GenerateResponse response;
  v1::TokenLogprobs& logprobs = *response.mutable_prompt_logprobs()->add_logprobs();
  logprobs.add_top()->set_id(prompt_[0]);
  FillTexts(*router_.tokenizer, logprobs);
  sink_.Send(std::move(response));
}

// Those that an attempt before had sent are left out.
void Session::SendScores() {
  const bool wanted = WantsScores();
  while (std::optional<v1::PromptScores> scores = run_->TakeScores()) {
    const int had = std::max(0, next_scored_ - scores->index());
    if (had >= scores->logprobs_size()) continue;
    v1::GenerateResponse response;
    v1::PromptLogprobs& message = *response.mutable_prompt_logprobs();
    message.set_index(scores->index() + had);
    for (int i = had; i < scores->logprobs_size(); ++i) {
      v1::TokenLogprobs& logprobs = *message.add_logprobs();
      logprobs = std::move(*scores->mutable_logprobs(i));
      FillTexts(*router_.tokenizer, logprobs);
    }
    next_scored_ = message.index() + message.logprobs_size();
    sink_.Send(std::move(response));
  }
  if (wanted && !WantsScores()) LetSiblingsBegin();  // whose tokens come behind them
}

void Session::SendTokens(const google::protobuf::RepeatedPtrField<v1::SampledToken>& tokens) {
  v1::GenerateResponse response;
  for (const v1::SampledToken& token : tokens) answer_->Feed(token, *response.mutable_tokens());
  const int fresh = response.tokens().ids_size();
  if (fresh == 0) return;
  const bool first = report_.tokens() == 0;
  report_.Tokens(fresh);
  sink_.Send(std::move(response));
  if (!first) return;
  report_.Lap(TtftStage::kFirstToken);
  report_.FirstToken(static_cast<int64_t>(prompt_.size()), width(), /*of_call=*/!role_.later());
  CountSaving();
  router_.metrics.CountExpectedOutput(expected_output_ - brought_);
}

absl::Status Session::NamingTheDeadline(const absl::Status& status) const {
  if (!is_timeout_ || !absl::IsDeadlineExceeded(status)) return status;
  return FieldError(absl::StatusCode::kDeadlineExceeded, "timeout_s",
                    absl::StrCat("the request's ", request_.timeout_s(), " seconds are over: ", status.message()));
}

absl::Status Session::WithWayOn(const absl::Status& status) const {
  // Where decode says so of the request itself, such as rules that leave no token, the next one would hear the same.
  const bool of_request = decode_end_ && absl::IsOutOfRange(*decode_end_);
  const bool lost = absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
                    (absl::IsOutOfRange(status) && !of_request) || failover_.retries_ended();
  if (!lost || !told_started_ || answer_->tokens() == 0) return status;
  const absl::Status told = absl::UnavailableError(absl::StrCat(
      status.message(), "; to go on behind the ", answer_->tokens(), " tokens that came, send the request again ",
      role_.answers > 1 ? "without n, " : "", "with the seed of `started`, and their ids as output_ids"));
  const std::optional<absl::Duration> retry_after = RetryAfter(status);
  return retry_after ? WithRetryAfter(told, *retry_after) : told;
}

// A request for one token says nothing of the length of answers, and what a client says that it has proves nothing.
void Session::LearnOutput(const absl::Status& status) const {
  if (!answer_ || max_tokens_ == 1 || brought_ > 0 || report_.tokens() == 0) return;
  router_.outputs->Learn(static_cast<int64_t>(prompt_.size()), max_tokens_, answer_->tokens(), status.ok());
}

// What a client brought of its answer was computed again, as its prompt was. Several answers pay for one prompt.
void Session::SettleGrant() {
  if (!told_started_) return grant_.Settle(0, 0);
  const int64_t prompt = role_.later() ? 0 : static_cast<int64_t>(prompt_.size());
  grant_.Settle(prompt + brought_, answer_->tokens() - brought_);
}

void Session::Finish() {
  v1::GenerateResponse response;
  v1::Finished& finished = *response.mutable_finished();
  finished.set_text(answer_->Finish());  // may find a stop string, so before the reason
  finished.set_reason(*answer_->reason());
  finished.mutable_usage()->set_prompt_tokens(static_cast<int32_t>(prompt_.size()));
  finished.mutable_usage()->set_completion_tokens(answer_->tokens());
  finished.mutable_usage()->set_cached_prompt_tokens(plan_.known_tokens());
  *finished.mutable_timing() = report_.Finish();
  finished.set_failovers(failover_.count());
  if (failover_.count() > 0) *finished.mutable_plan() = plan_;
  sink_.Send(std::move(response));
}

TracedRequest Session::Traced(const absl::Status& status) const {
  TracedRequest traced;
  if (report_.trace() == nullptr) return traced;
  traced.chat = chat_;
  traced.model = request_.model().empty() ? router_.model.name : request_.model();
  traced.served_model = router_.model.name;
  traced.sampling = request_.sampling();
  traced.sampling.clear_logit_bias();
  traced.max_tokens = max_tokens_;
  traced.answers = role_.answers;
  traced.status = status;
  if (answer_) traced.finish_reason = answer_->reason().value_or(v1::FINISH_REASON_UNSPECIFIED);
  traced.prompt_tokens = static_cast<int64_t>(prompt_.size());
  traced.known_tokens = plan_.known_tokens();
  traced.failovers = failover_.count();
  return traced;
}

RequestRecord Session::Record(const absl::Status& status) const {
  RequestRecord record;
  record.request_id = request_.request_id();
  record.tenant = tenant_;
  record.user = request_.user();
  record.status = status;
  record.plan = plan_;
  record.failovers = failover_.count();
  record.prompt_tokens = static_cast<int64_t>(prompt_.size());
  if (answer_) record.finish_reason = answer_->reason().value_or(v1::FINISH_REASON_UNSPECIFIED);
  report_.Fill(record);
  if (router_.log_prompts) {
    // Each token is a character or more, but for parts of one.
    const absl::Span<const int32_t> first =
        absl::MakeSpan(prompt_).first(std::min<size_t>(prompt_.size(), 4 * kLoggedPromptCharacters));
    record.prompt = LoggedPrompt(router_.tokenizer->Decode(first, /*skip_special=*/false));
  }
  return record;
}

}  // namespace runahead
