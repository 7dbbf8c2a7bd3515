// The way of one request, from the message to the last token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runahead/v1/inference.pb.h"
#include "scheduler/placement/chain_plan.h"
#include "scheduler/placement/continuation_choice.h"
#include "server/base/byte_budget.h"
#include "server/base/clock.h"
#include "server/base/cpu_limit.h"
#include "server/router/agreement.h"
#include "server/router/answer.h"
#include "server/router/answer_role.h"
#include "server/router/cancel_token.h"
#include "server/router/coming_beginnings.h"
#include "server/router/decode_lease.h"
#include "server/router/decode_stream.h"
#include "server/router/failover.h"
#include "server/router/fleet.h"
#include "server/router/fleet_queue.h"
#include "server/router/key_account.h"
#include "server/router/known_index.h"
#include "server/router/large_text_turns.h"
#include "server/router/leaving_prompt.h"
#include "server/router/live_table.h"
#include "server/router/move_places.h"
#include "server/router/output_forecast.h"
#include "server/router/prefill_run.h"
#include "server/router/request_log.h"
#include "server/router/request_memory.h"
#include "server/router/retry_budget.h"
#include "server/router/router_metrics.h"
#include "server/router/sequencer.h"
#include "server/router/session_report.h"
#include "server/router/tracer.h"
#include "server/router/whole_trace.h"
#include "server/task/task.h"
#include "server/task/thread_executor.h"
#include "server/tokenizer/chat_template.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead {

// For texts and plans: as many as cores, so that they may have all of these, and two at least, so that a large text is
// alone on no machine.
inline int WorkThreads() {
  return std::clamp(UsableCores(), 2, 16);
}

// What all sessions of a router share. Immutable, or thread-safe by itself; outlives them.
struct RouterParts {
  Fleet& fleet;
  FleetQueue& queue;
  Sequencer& sequencer;
  RouterMetrics& metrics;
  Clock& clock;
  ModelInfo model;
  std::shared_ptr<const Tokenizer> tokenizer;
  absl::StatusOr<ChatTemplate> chat_template;  // not OK: chats are refused with it
  const LiveTable& table;
  Schedule schedule = Schedule::kKvr;  // where a request does not name one
  bool experiments = false;
  std::shared_ptr<Tracer> tracer = Tracer::Create(TraceMode::kOff, 0);
  bool log_prompts = false;
  // How long a request waits for workers or paths that were lost and may come back.
  absl::Duration absence_timeout = absl::Seconds(30);
  std::map<std::string, double> tenant_weights = {};  // of those that are not 1
  const std::unique_ptr<OutputForecast> outputs = std::make_unique<OutputForecast>();
  const std::unique_ptr<KnownIndex> known = std::make_unique<KnownIndex>(/*on=*/true, fleet, metrics);
  const std::unique_ptr<ComingBeginnings> coming = std::make_unique<ComingBeginnings>();
  const std::unique_ptr<LargeTextTurns> large_text_turns = std::make_unique<LargeTextTurns>();
  const std::unique_ptr<MovePlaces> move_places = std::make_unique<MovePlaces>();
  const std::unique_ptr<RetryBudget> retry_budget = std::make_unique<RetryBudget>(metrics);
  // What takes long: texts are tokenized here, and chains planned. Each session's other steps are where it was begun.
  const std::unique_ptr<ThreadExecutor> work = std::make_unique<ThreadExecutor>("session work", WorkThreads());
  // How long a decode worker may take to reserve for a sequence that moves, whose tokens wait meanwhile.
  absl::Duration move_patience = absl::Milliseconds(500);
  // A sequence that could not move is asked for again after so long: others end meanwhile, or workers come back.
  absl::Duration move_again = absl::Seconds(1);
  // How long a decode worker may take to reserve for what others may begin with, where the first token waits for that.
  absl::Duration keep_patience = absl::Milliseconds(500);
  // For tests and benchmarks: the rest of each prompt whose beginning is known goes this way alone, whatever it takes.
  // It changes only while no request without no_cache is on its way.
  std::optional<KnownWay> only_way = {};
};

// Where responses go.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void Send(v1::GenerateResponse response) = 0;  // never blocks
};

// For one coroutine: Run(), which ends soon after `cancel` is cancelled.
class Session {
 public:
  // `arrival` and `deadline`, the call's, are on the router's clock; what is given by reference must outlive the
  // session. `caller` is the span that the request came from, where it said one. `memory` is what the request takes.
  // `tenant` is whose request it is; empty: nobody's by name. `grant` is what it takes of its API key's limits, where
  // it came with one. With a `role` it gives one of several answers; a later one's `memory` and `grant` are its share.
  Session(const RouterParts& router, v1::GenerateRequest request, absl::Time arrival, absl::Time deadline,
          CancelToken& cancel, ResponseSink& sink, const std::optional<TraceContext>& caller = std::nullopt,
          ByteBudget::Lease memory = {}, std::string tenant = {}, KeyGrant grant = {}, AnswerRole role = {});

  // Answers the request. Whatever the end, no work, lease or place of it is left in the pool, but for what
  // HandOverPrompt gives. `settled` is called, once or more, where it holds up nobody's start any more: with its first
  // token, or when it has to wait for a decode worker.
  Task<absl::Status> Run(std::function<void()> settled = [] {});

  // What the request has taken, once Run() has returned: for whoever holds what the client has not read yet.
  ByteBudget::Lease HandOverMemory() { return std::move(memory_); }

  // The prompt, where a decode worker is to keep it that does not have all of it yet; else null. To be run without
  // whoever waits for the answer. Once, when Run() has returned and Record() has been called.
  std::unique_ptr<LeavingPrompt> HandOverPrompt();

  // What the log is to say, once Run() has returned with `status`.
  RequestRecord Record(const absl::Status& status) const;

 private:
  // What its trace is to say of it, which ended with `status`.
  TracedRequest Traced(const absl::Status& status) const;
  Task<absl::Status> Prepare();   // checks and tokenizes
  void Truncate();                // to the last tokens, where the request says so
  absl::Status TakePrompt();      // that was tokenized
  absl::Status TakeForAnswers();  // memory and tokens; the shares of later ones go to them
  // What the next token may be, for who draws it.
  Task<absl::Status> TakeRules();
  // What the client has of the answer. INVALID_ARGUMENT where it goes on behind the answer's end.
  Task<absl::Status> TakeOutput();
  // To the answer's end, by as many attempts as it takes and Failover allows.
  Task<absl::Status> ReachEnd(const std::function<void()>& settled);
  // The first attempt's workers: one that may continue a beginning, else as Place. Refused where it would come too
  // late.
  Task<absl::Status> PlaceFirst(const std::function<void()>& settled);
  // From the Starts to the answer's end, or where a beginning is continued from its decode. Tokens that the answer has
  // are not computed anew: it goes on behind them.
  Task<absl::Status> Attempt(const std::function<void()>& settled);
  // OK: the next one may begin, and nothing of this one, which ended with `status`, is held.
  absl::Status GiveUpAttempt(const absl::Status& status);
  // RESOURCE_EXHAUSTED, with when to try again, where the first token is expected behind the deadline.
  absl::Status CheckDeadline() const;
  Claim ClaimOfTurn() const;
  Task<absl::Status> Place(const std::function<void()>& settled);  // waits for workers and memory
  // After `absent`, UNAVAILABLE: OK when it is worth asking again. As FleetQueue::AwaitReturn.
  Task<absl::Status> AwaitReturn(const absl::Status& absent, WorkerRole missing, uint64_t returns,
                                 absl::Duration at_least, absl::Time until);
  Task<absl::Status> TakeLease();  // for what run_ brings, or begins behind
  // For an answer of one token: for those alone that begin alike, where memory and a slot are free now.
  Task<absl::Status> TakeLeaseToKeep();
  void ExpectOutput();  // anew
  DecodeLease::Need NeedOfAnswer() const;
  DecodeLease::Need NeedOfDecode() const;  // beside what run_ takes
  // Of an answer that decodes nothing: a worker that keeps the prompt, or has the beginning that run_ begins behind.
  DecodeLease::Need NeedOfOneToken() const;
  std::optional<DecodeLease::Need::Known> KnownToBring() const;
  // A decode worker that may have KV of the prompt's beginning, where the first token is expected sooner with that.
  struct Continuation {
    std::shared_ptr<const LiveWorker> worker;
    int64_t least_tokens = 0;  // that it must have
    double rest_s = 0;         // until the first token, as ContinuationOffer
    double whole_s = 0;        // likewise
    double expected_s = 0;     // rest_s, as it is expected and not as it counts in the choice
    int64_t rests = 0;         // of prompts that the worker computes already
    bool by_chain = false;     // computes the rest, behind exactly least_tokens; else the worker does
    int64_t known_tokens = 0;  // that it is said to have; of one that is not by_chain
  };
  // Of workers that were not asked in vain, by index.
  Task<std::optional<Continuation>> ChooseContinuation(const std::set<int>& in_vain) const;
  // OK: lease_ is complete. NOT_FOUND: the worker does not have as much.
  Task<absl::Status> AskToContinue(const Continuation& chosen);
  // By `way`, whatever it takes; nothing where that is none, or one that cannot be gone there.
  std::optional<Continuation> ByOnly(KnownWay way, const KnownIndex::Found& found) const;
  // Whether a chain may begin behind what a decode worker has of it.
  bool MayBeginBehind() const;
  // True: lease_ is complete, and there is no run. False: the ordinary way is to follow, by a chain that begins behind
  // what behind_ says, where it says something.
  Task<absl::StatusOr<bool>> Continue(const std::function<void()>& settled);
  // With a place on a chain, before anything is computed: true where it begins with what decode workers have by now, as
  // Continue, or false: it is to be computed. Nothing: it has given its place back and takes another one, for a chain
  // that begins behind what is known, or because it waited for one that begins alike in vain.
  Task<absl::StatusOr<std::optional<bool>>> LookAgain(bool after_full, const std::function<void()>& settled);
  // The worker which is asked first for a lease, with no ways where that keeps no prompts; none where there is none.
  ComingBeginnings::Destination WhereItGoes() const;
  // Of these, those that it may go itself, rather than use its place.
  KnownWays OwnWays(KnownWays ways) const;
  // What becomes of a prompt that waits for no other.
  struct Alone {
    absl::Duration takes;      // until its first token; 0: not known
    int64_t known_tokens = 0;  // behind which it begins
    bool by_rows = false;      // the worker that has these computes the rest; else a chain does
    ComingBeginnings::Destination to = {};
  };
  Alone ByRows(const Continuation& chosen) const;
  // Where a prompt is computed that begins alike, and that pays, gives its place back and waits until KV of it is
  // there, or will not be, or it has waited for long enough: true. Else it is to be computed: false, and others may
  // wait for it.
  Task<absl::StatusOr<bool>> AwaitAlike(const Alone& alone, const std::function<void()>& settled);
  bool PaysToWait(const ComingBeginnings::Alike& alike, const Alone& alone) const;
  // When it would wait for that no longer.
  absl::Time WaitsUntil(const ComingBeginnings::Alike& alike, absl::Duration alone) const;
  // Where its chain was to begin behind what a worker has, which that does not give: it is to compute the whole prompt.
  // False where it does so already.
  bool BeginFromFirst(const absl::Status& refused);
  void BeginFromFirst();
  // ABORTED where `lease` begins without X, and its steps are expected to take so much longer for that that the chain
  // is to compute the whole prompt.
  absl::Status CheckStepsBehind(const DecodeLease& lease) const;
  // What a worker offers that has so much of the prompt, where an earlier answer of the call left it there.
  ContinuationOffer OfferToSibling(int64_t known) const;
  void CountContinuation(const absl::Status& reserved, const Continuation& chosen) const;
  // By what it asks for: not where an experiment asks for a chain, nor what is scored, which is to be computed.
  bool MayContinue() const {
    return router_.known->on() && !request_.no_cache() && !request_.has_experiment() && !WantsScores();
  }
  bool continues() const { return run_ == nullptr && lease_ != nullptr; }  // of an attempt
  void BeginContinuation();
  void EndRest();  // the worker has computed it
  // What it saves, or loses, is counted with its first token.
  void BeginSaving(const Continuation& chosen);
  void CountSaving();
  Task<absl::Status> Prefill();  // to the tail's token, which is the answer's first unless it has some
  // What ended the attempt, where not the client or its deadline.
  PrefillRun::Failure FailureOf(const absl::Status& status) const;
  Task<absl::Status> Decode();  // the other tokens, wherever they are decoded
  Task<absl::Status> DecodeOnLease();
  // Asks the decode worker to move the sequence, where that drains and another one has room for it.
  Task<> ConsiderMove();
  DecodeLease::Need NeedOfMove() const;
  void TellStays(absl::string_view why);  // to the log, once
  void TakeMoveEnd(const v1::MoveEnd& end);
  MoveResult ResultOfNoMove() const;  // of a move of which nothing was said
  // Where the sequence has moved, it goes on under the other lease; else whatever was under way is over.
  bool GoOnWhereMoved();
  // Says of a deadline that has passed whose it was, where that was not the call's.
  absl::Status NamingTheDeadline(const absl::Status& status) const;
  // Whoever loses an answer in the middle of it is told how to go on: UNAVAILABLE then.
  absl::Status WithWayOn(const absl::Status& status) const;
  void LearnOutput(const absl::Status& status) const;
  void LearnBeginning() const;  // of what lease_'s worker has decoded
  // By what it asks for, whether others may begin with its prompt.
  bool MayLeavePrompt() const;
  // Whether lease_'s worker has KV of the whole prompt for others once it decodes.
  bool LeavesPrompt() const { return MayLeavePrompt() && lease_ != nullptr && KeepsPrompts(lease_->worker()); }
  // Whether the answer ended with its first token, and the prompt is on its way to such a worker still. Of X in place
  // of KV only a step would make KV.
  bool PromptOnItsWay() const { return run_ != nullptr && prefill_needed_ && LeavesPrompt() && lease_->kv_from() == 0; }
  // Others may wait for the prompt where lease_'s worker is to have it, and nobody where it is not.
  void PromptGoesToLease();
  // Its siblings wait for nothing where it will not have it, so that each computes the prompt, nor where a worker has
  // it: a later answer's chain computes the last token alone.
  void LetSiblingsBegin() {
    const bool is_there = role_.later() && chain_.rest() == 1;
    if (role_.siblings != nullptr && (is_there || !LeavesPrompt())) role_.siblings->MayBegin();
  }
  // As soon as it does, others that begin alike can begin with that.
  void LeavePrompt();
  // Its key has back what it did not use.
  void SettleGrant();
  void Finish();

  Task<absl::StatusOr<std::vector<int32_t>>> Tokenize() const;  // in its turn
  absl::StatusOr<std::vector<int32_t>> Encode() const;
  Task<absl::StatusOr<v1::FirstToken>> AwaitFirstToken();
  v1::Plan PlanOfRun() const;
  // The attempt has its workers, and goes on by this plan.
  void Began(v1::Plan plan);
  // The prompt's scores are asked for, and the client does not have all of them.
  bool WantsScores() const {
    return request_.has_prompt_logprobs() && next_scored_ < static_cast<int64_t>(prompt_.size());
  }
  void SendScores();  // that have come, in their order
  void SendFirstOfPrompt();
  void SendStarted();  // of the first attempt; where another follows, the client is told of its plan at the end
  void SendTokens(const google::protobuf::RepeatedPtrField<v1::SampledToken>& tokens);
  v1::DecodeRequest MakeDecodeRequest() const;
  absl::Status EndOfDecode(const absl::Status& status);
  // DEADLINE_EXCEEDED once the time is up. Asked before a worker's failure is believed: workers end a job at its
  // deadline too, each in its own way, and their reports may come before the client's cancel.
  absl::Status InTime(absl::string_view meanwhile) const;
  // The next reply with tokens; false at the end. Keeps what comes of spans: where the sequence has moved, nothing else
  // is waited for. At `until` the call is cancelled.
  Task<bool> ReadTokens(DecodeStream& stream, v1::DecodeReply& reply, absl::Time until = absl::InfiniteFuture());
  // Workers of the chain; 0 where there is none.
  int width() const { return run_ == nullptr ? 0 : static_cast<int>(run_->placement().chain.size()); }

  const RouterParts& router_;
  const AnswerRole role_;
  ByteBudget::Lease memory_;
  const std::string tenant_;
  KeyGrant grant_;
  const std::string salt_;       // who may know what is kept of it: its key's requests, or those of no key
  v1::GenerateRequest request_;  // without its input, once that was tokenized
  const bool chat_;
  const absl::Time deadline_;  // of the call or of the request, whichever is earlier
  const bool is_timeout_;      // it is the request's
  CancelToken& cancel_;
  ResponseSink& sink_;
  SessionReport report_;
  v1::SamplingParams sampling_;  // seed set
  std::vector<int32_t> prompt_;
  std::vector<int32_t> stop_ids_;
  std::optional<v1::DrawRules> rules_;  // absent: any token
  int32_t max_tokens_ = 0;
  int32_t next_scored_ = 1;      // the first token of the prompt whose scores the client does not have
  int32_t brought_ = 0;          // of the answer's tokens, those that came with the request
  int32_t expected_output_ = 0;  // tokens, by what was known when the lease was asked for
  ChainRequest chain_;
  // The request goes on from a known beginning, chosen then. From there to its first token was to take whole_s by a
  // chain that computes all, and rest_s as it goes on.
  struct Saving {
    absl::Time since;
    double whole_s = 0, rest_s = 0;
  };
  std::optional<Saving> saving_;              // absent, too, where no times are known
  std::optional<Continuation> behind_;        // chain_ begins behind it: by_chain; absent: it computes the whole prompt
  bool behind_refused_ = false;               // such a chain: it is not asked for again before the request has waited
  std::optional<FleetQueue::Ticket> ticket_;  // until the end: who is placed anew has its old turn
  Failover failover_;
  v1::Plan plan_;  // of what was started last
  bool told_started_ = false;
  bool left_prompt_ = false;  // LeavePrompt has been called
  // For prompts that begin alike, however many there are, from its first wait on.
  absl::Time waits_until_ = absl::InfiniteFuture();
  std::optional<Answer> answer_;
  // The run goes before the lease: first nothing is written to it any more, then it is given back.
  std::unique_ptr<DecodeLease> lease_;
  bool failed_before_ = false;  // an attempt has failed: the next ones go the ordinary way
  uint64_t lessons_ = 0;        // KnownIndex::lessons(), when it was last looked for a known beginning
  std::unique_ptr<ComingBeginnings::Computed> coming_;  // until a decode worker has the prompt, or will not have it
  std::unique_ptr<KnownIndex::Rest> rest_;  // of the prompt, until it is computed; null but for a continuation
  // When the worker was asked for that, unless it computed others: then it says nothing of the pace.
  std::optional<absl::Time> rest_since_;
  std::shared_ptr<PrefillRun> run_;  // null where the decode worker continues a beginning that it has
  bool prefill_needed_ = true;       // until nothing depends on what is left of the run
  // From one decode worker to another.
  struct Move {
    std::unique_ptr<DecodeLease> to;  // null: none is under way
    std::unique_ptr<MovePlaces::Place> place;
    absl::Time began;
    std::optional<int32_t> tokens = {};  // whose KV is there; the sequence has moved
  };
  Move move_;
  absl::Time move_again_ = absl::InfinitePast();  // not before
  bool told_stays_ = false;                       // the log was told why it does not move from lease_
  std::optional<int32_t> moved_tokens_;           // to lease_, where it moved there
  std::optional<absl::Status> decode_end_;        // of the attempt, where its decode ended before the answer did
};

}  // namespace runahead
