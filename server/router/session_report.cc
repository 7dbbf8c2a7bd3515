#include "server/router/session_report.h"

#include <utility>

#include "absl/time/clock.h"

namespace runahead {

SessionReport::SessionReport(RouterMetrics& metrics, Clock& clock, absl::Time arrival,
                             std::shared_ptr<RequestTrace> trace, const std::optional<TraceContext>& caller)
    : metrics_(metrics), clock_(clock), stages_(arrival), last_lap_(arrival), trace_(std::move(trace)) {
  if (caller) trace_id_ = caller->trace_id;
  if (trace_ != nullptr) trace_id_ = trace_->trace_id();
}

void SessionReport::Lap(TtftStage stage) {
  const absl::Time now = clock_.Now();
  if (trace_ != nullptr) trace_->Add(TtftStageName(stage), last_lap_, now);
  last_lap_ = now;
  if (!answered_) stages_.Lap(stage, now);
}

void SessionReport::LapPrefill(const v1::FirstToken& first) {
  if (answered_) return Lap(TtftStage::kPrefill);
  const absl::Time now = clock_.Now();
  absl::Time begin = std::exchange(last_lap_, now);
  stages_.LapPrefill(absl::Seconds(first.queue_s()), absl::Seconds(first.prefill_s()), now);
  if (trace_ == nullptr) return;
  for (const TtftStage stage : {TtftStage::kWorkerQueue, TtftStage::kPrefill, TtftStage::kFirstToken}) {
    const absl::Time end = begin + stages_.spent(stage);
    trace_->Add(TtftStageName(stage), begin, end);
    begin = end;
  }
}

void SessionReport::DecodeFailed() {
  const absl::Time now = clock_.Now();
  const absl::Time begin = std::exchange(last_lap_, now);
  if (trace_ != nullptr) trace_->Add("decode", begin, now, tokens_ - decoded_);
  decoded_ = tokens_;
  decoding_ = false;
  if (!answered_) return stages_.Lap(TtftStage::kPrefill, now);
  if (!rebuilt_since_) rebuilt_since_ = now;
}

void SessionReport::Moved(absl::Time began, int64_t tokens) {
  if (trace_ != nullptr) trace_->Add("move", began, clock_.Now(), tokens);
}

void SessionReport::Tokens(int fresh) {
  const absl::Time now = clock_.Now();
  decoding_ = true;
  if (rebuilt_since_) {
    if (trace_ != nullptr) trace_->Add("rebuild", *rebuilt_since_, now, tokens_);
    rebuilt_since_.reset();
  }
  if (tokens_ == 0) {
    first_token_at_ = now;
  } else {
    if (tokens_ == 1) metrics_.ObserveFirstGap(now - last_token_at_);
    for (int i = 0; i < fresh; ++i) metrics_.ObserveInterTokenLatency((now - last_token_at_) / fresh);
  }
  last_token_at_ = now;
  tokens_ += fresh;
  metrics_.CountGeneratedTokens(fresh);
}

void SessionReport::FirstToken(int64_t prompt_tokens, int width, bool of_call) {
  answered_ = true;
  if (!of_call) return;
  for (int stage = 0; stage < kTtftStages; ++stage) {
    const auto which = static_cast<TtftStage>(stage);
    metrics_.ObserveTtftStage(which, width, stages_.spent(which));
  }
  metrics_.ObserveTimeToFirstToken(prompt_tokens, width, stages_.total());
}

void SessionReport::AddSpans(const LiveWorker& worker, const v1::TraceSpans& spans) {
  if (trace_ != nullptr) trace_->AddWorker(worker.capabilities, spans, *worker.clock, clock_.Now());
}

void SessionReport::EndTrace(TracedRequest request) {
  if (trace_ == nullptr) return;
  const absl::Time now = clock_.Now();
  if (decoding_) trace_->Add("decode", last_lap_, now, tokens_ - decoded_);
  if (rebuilt_since_) trace_->Add("rebuild", *rebuilt_since_, now, tokens_);
  trace_->Add("request", stages_.start(), now, request.prompt_tokens);
  request.generated_tokens = tokens_;
  if (tokens_ > 0) request.ttft = stages_.total();
  request.wall_ahead = absl::Now() - now;
  trace_->Describe(std::move(request));
  trace_.reset();
}

absl::Duration SessionReport::PerToken() const {
  if (tokens_ < 2) return absl::ZeroDuration();
  return (last_token_at_ - first_token_at_) / (tokens_ - 1);
}

v1::Timing SessionReport::Finish() {
  v1::Timing timing;
  timing.set_ttft_s(absl::ToDoubleSeconds(stages_.total()));
  timing.set_tpot_s(absl::ToDoubleSeconds(PerToken()));
  if (tokens_ > 1) metrics_.ObserveTimePerOutputToken(PerToken());
  for (int stage = 0; stage < kTtftStages; ++stage) {
    const auto which = static_cast<TtftStage>(stage);
    (*timing.mutable_stages())[std::string(TtftStageName(which))] = absl::ToDoubleSeconds(stages_.spent(which));
  }
  return timing;
}

void SessionReport::Fill(RequestRecord& record) const {
  record.trace_id = trace_id_;
  record.generated_tokens = tokens_;
  record.tpot = PerToken();
  for (int stage = 0; stage < kTtftStages; ++stage) {
    const auto which = static_cast<TtftStage>(stage);
    record.stages.emplace_back(TtftStageName(which), absl::ToDoubleSeconds(stages_.spent(which)));
  }
  if (tokens_ > 0) record.ttft = stages_.total();
  record.total = clock_.Now() - stages_.start();
}

}  // namespace runahead
