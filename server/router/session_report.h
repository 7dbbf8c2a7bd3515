// Reports how one request went: to the metrics, its trace, the client and the log.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "runahead/v1/inference.pb.h"
#include "runahead/v1/worker.pb.h"
#include "server/base/clock.h"
#include "server/base/trace_context.h"
#include "server/router/fleet.h"
#include "server/router/request_log.h"
#include "server/router/request_trace.h"
#include "server/router/router_metrics.h"
#include "server/router/ttft_clock.h"
#include "server/router/whole_trace.h"

namespace runahead {

// For one thread at a time.
class SessionReport {
 public:
  // `metrics` and `clock` must outlive it. `trace` is null where it is not recorded; `caller` is the span that the
  // request came from, where it said one.
  SessionReport(RouterMetrics& metrics, Clock& clock, absl::Time arrival, std::shared_ptr<RequestTrace> trace,
                const std::optional<TraceContext>& caller);

  // All time since the lap before belongs to `stage`. Once the first token is out only the trace hears of it: what is
  // lost then and done again is no part of the time to that.
  void Lap(TtftStage stage);
  // The lap from Start to the tail's token.
  void LapPrefill(const v1::FirstToken& first);
  // An attempt to decode has failed: its time is the trace's, and before the first token it is the prefill's. What
  // follows behind that, up to the next token, is a rebuild.
  void DecodeFailed();

  // Since `began` it was moved to another decode worker, which has KV of so many tokens now.
  void Moved(absl::Time began, int64_t tokens);

  // So many tokens more have come, one or more.
  void Tokens(int fresh);
  // The first one is out, of a prompt of so many, on a chain of this width. Not `of_call`: an earlier answer of the
  // call had that, and the metrics hear of no other.
  void FirstToken(int64_t prompt_tokens, int width, bool of_call = true);
  int tokens() const { return tokens_; }

  // Null: not recorded, or it has ended.
  const std::shared_ptr<RequestTrace>& trace() const { return trace_; }
  // What a worker recorded.
  void AddSpans(const LiveWorker& worker, const v1::TraceSpans& spans);
  // Before the client hears of the end, so that it finds the trace. What is known here of `request` is filled in.
  void EndTrace(TracedRequest request);

  // As the client is told, of an answer that is whole; the metrics hear of it too.
  v1::Timing Finish();
  // Its part of what the log says.
  void Fill(RequestRecord& record) const;

 private:
  absl::Duration PerToken() const;  // after the first one; 0 where there is none

  RouterMetrics& metrics_;
  Clock& clock_;
  TtftClock stages_;  // until the first token
  bool answered_ = false;
  bool decoding_ = false;  // since a token came
  absl::Time last_lap_;
  std::shared_ptr<RequestTrace> trace_;
  std::string trace_id_;  // empty: of no trace
  int tokens_ = 0;
  int decoded_ = 0;  // of them, those of attempts that failed
  std::optional<absl::Time> rebuilt_since_;
  absl::Time first_token_at_;
  absl::Time last_token_at_;
};

}  // namespace runahead
