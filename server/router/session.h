// The way of one request, from the message to the last token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runahead/v1/inference.pb.h"
#include "scheduler/placement/chain_plan.h"
#include "server/base/byte_budget.h"
#include "server/base/clock.h"
#include "server/router/agreement.h"
#include "server/router/answer.h"
#include "server/router/cancel_token.h"
#include "server/router/decode_lease.h"
#include "server/router/failover.h"
#include "server/router/fleet.h"
#include "server/router/large_text_turns.h"
#include "server/router/live_table.h"
#include "server/router/prefill_run.h"
#include "server/router/request_log.h"
#include "server/router/request_memory.h"
#include "server/router/retry_budget.h"
#include "server/router/router_metrics.h"
#include "server/router/sequencer.h"
#include "server/router/tracer.h"
#include "server/router/ttft_clock.h"
#include "server/tokenizer/chat_template.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead {

// What all sessions of a router share. Immutable, or thread-safe by itself; outlives them.
struct RouterParts {
  Fleet& fleet;
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
  const std::unique_ptr<LargeTextTurns> large_text_turns = std::make_unique<LargeTextTurns>();
  const std::unique_ptr<RetryBudget> retry_budget = std::make_unique<RetryBudget>(metrics);
};

// Where responses go.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void Send(v1::GenerateResponse response) = 0;  // never blocks
};

// For one thread. Blocks in Run(), which returns soon after `cancel` is cancelled.
class Session {
 public:
  // `arrival` and `deadline` are on the router's clock; what is given by reference must outlive the session. `caller`
  // is the span that the request came from, where it said one. `memory` is what the request takes.
  Session(const RouterParts& router, v1::GenerateRequest request, absl::Time arrival, absl::Time deadline,
          CancelToken& cancel, ResponseSink& sink, const std::optional<TraceContext>& caller = std::nullopt,
          ByteBudget::Lease memory = {});

  // Answers the request. Whatever the end, no work, lease or place of it is left in the pool. `settled` is called, once
  // or more, where it holds up nobody's start any more: with its first token, or when it has to wait for decode memory.
  absl::Status Run(const std::function<void()>& settled = [] {});

  // What the log is to say, once Run() has returned with `status`.
  RequestRecord Record(const absl::Status& status) const;

 private:
  absl::Status Prepare();  // checks and tokenizes
  // Until the first token is out, by as many attempts as it takes and Failover allows. Nothing of one is used by the
  // next, but for the turn in the queue.
  absl::Status ReachFirstToken(const std::function<void()>& settled);
  absl::Status Place(const std::function<void()>& settled);  // waits for workers and memory
  // After `absent`, UNAVAILABLE: OK when it is worth asking again. As Fleet::AwaitReturn.
  absl::Status AwaitReturn(const absl::Status& absent, uint64_t returns, absl::Duration at_least, absl::Time until);
  absl::Status TakeLease();
  absl::Status Prefill();
  // What ended the attempt, where not the client or its deadline.
  PrefillRun::Failure FailureOf(const absl::Status& status) const;
  absl::Status Decode();  // the other tokens
  void Finish();

  absl::StatusOr<std::vector<int32_t>> Tokenize() const;
  absl::StatusOr<v1::FirstToken> AwaitFirstToken();
  v1::Plan PlanOfRun() const;
  void SendStarted();  // of the first attempt; where another follows, the client is told of its plan at the end
  void SendTokens(const google::protobuf::RepeatedPtrField<v1::SampledToken>& tokens);
  void ObserveFirstToken();
  v1::DecodeRequest MakeDecodeRequest() const;
  absl::Status EndOfDecode(const absl::Status& status) const;
  // DEADLINE_EXCEEDED once the time is up. Asked before a worker's failure is believed: workers end a job at its
  // deadline too, each in its own way, and their reports may come before the client's cancel.
  absl::Status InTime(absl::string_view meanwhile) const;
  void Lap(TtftStage stage);
  void LapPrefill(const v1::FirstToken& first);
  using DecodeReader = grpc::ClientReaderInterface<v1::DecodeReply>;
  // The next reply with tokens; false at the end. Keeps what comes of spans.
  bool ReadTokens(DecodeReader& reader, v1::DecodeReply& reply);
  void EndTrace();
  absl::Duration PerToken() const;  // after the first one; 0 where there is none
  int width() const { return static_cast<int>(run_->placement().chain.size()); }

  const RouterParts& router_;
  ByteBudget::Lease memory_;
  v1::GenerateRequest request_;  // without its input, once that was tokenized
  const absl::Time deadline_;
  CancelToken& cancel_;
  ResponseSink& sink_;
  TtftClock stages_;
  std::shared_ptr<RequestTrace> trace_;  // null: not recorded, or it has ended
  std::string trace_id_;                 // empty: of no trace
  v1::SamplingParams sampling_;          // seed set
  std::vector<int32_t> prompt_;
  std::vector<int32_t> stop_ids_;
  int32_t max_tokens_ = 0;
  ChainRequest chain_;
  std::optional<Fleet::Ticket> ticket_;  // until the first token
  Failover failover_;
  v1::Plan plan_;  // of what was started last
  bool told_started_ = false;
  std::optional<Answer> answer_;
  // The run goes before the lease: first nothing is written to it any more, then it is given back.
  std::unique_ptr<DecodeLease> lease_;
  std::shared_ptr<PrefillRun> run_;
  bool prefill_needed_ = true;  // until nothing depends on what is left of the run
  int32_t first_token_ = 0;
  absl::Time first_token_at_;
  absl::Time last_token_at_;
};

}  // namespace runahead
