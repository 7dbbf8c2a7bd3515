#include "worker/decode/service/token_stream.h"

#include <utility>

#include "server/rpc/status.h"
#include "server/rpc/trace_proto.h"
#include "worker/service/proto_convert.h"

namespace runahead {

TokenStream::TokenStream(grpc::CallbackServerContext& context, DecodeEngine& engine, Clock& clock, DrainGate::Pass pass,
                         std::function<void()> ended)
    : context_(context), engine_(engine), clock_(clock), ended_callback_(std::move(ended)), pass_(std::move(pass)) {}

void TokenStream::Begin(DecodeSequence sequence) {
  {
    MutexLock lock(mu_);
    self_ = shared_from_this();
    spans_ = sequence.spans;
    remaining_ = sequence.max_tokens - static_cast<int64_t>(sequence.output_ids.size());
  }
  // Outside the lock: tokens may come before Add returns.
  const absl::StatusOr<SequenceNumber> number = engine_.Add(std::move(sequence), shared_from_this());
  if (!number.ok()) return OnEnd(number.status());
  MutexLock lock(mu_);
  number_ = *number;
  if (cancelled_) engine_.Cancel(*number);
}

void TokenStream::Refuse(absl::Status status) {
  {
    MutexLock lock(mu_);
    self_ = shared_from_this();
  }
  OnEnd(std::move(status));
}

bool TokenStream::CancelIfStalled(absl::Duration timeout) {
  MutexLock lock(mu_);
  if (!in_flight_ || cancelled_ || clock_.Now() - write_began_ <= timeout) return false;
  context_.TryCancel();  // the context lives: a write is in flight
  return true;
}

void TokenStream::Cancel() {
  MutexLock lock(mu_);
  if (!done_) context_.TryCancel();
}

std::optional<int64_t> TokenStream::Remaining() {
  MutexLock lock(mu_);
  if (!ran_ || parked_ || end_.has_value()) return std::nullopt;
  return remaining_;
}

void TokenStream::OnToken(Sampled token) {
  MutexLock lock(mu_);
  ran_ = true;
  --remaining_;
  *waiting_.add_tokens() = SampledToProto(token);
  Pump();
}

void TokenStream::OnParked(bool parked) {
  MutexLock lock(mu_);
  parked_ = parked;
}

void TokenStream::OnMoved(const MoveOutcome& outcome) {
  MutexLock lock(mu_);
  v1::MoveEnd& move = move_.emplace();
  if (outcome.status.ok()) {
    move.set_moved_tokens(static_cast<int32_t>(outcome.tokens));
  } else {
    move.set_why_not(std::string(outcome.status.message()));
  }
  move.set_bytes(outcome.bytes);
  move.set_took_s(absl::ToDoubleSeconds(outcome.took));
  move.set_stopped_s(absl::ToDoubleSeconds(outcome.stopped));
  Pump();
}

void TokenStream::OnEnd(absl::Status status) {
  ended_callback_();
  MutexLock lock(mu_);
  end_ = std::move(status);
  Pump();
}

void TokenStream::OnWriteDone(bool) {
  MutexLock lock(mu_);
  in_flight_ = false;
  // After a failed write the next one fails too, and OnCancel comes: there is nothing else to do about it here.
  Pump();
}

void TokenStream::OnCancel() {
  MutexLock lock(mu_);
  cancelled_ = true;
  if (number_.has_value()) engine_.Cancel(*number_);
}

void TokenStream::OnDone() {
  std::shared_ptr<TokenStream> self;  // goes after the lock
  MutexLock lock(mu_);
  self = std::move(self_);
  done_ = true;
  pass_ = DrainGate::Pass();
}

void TokenStream::Pump() {
  if (in_flight_ || finished_) return;
  if (waiting_.tokens_size() > 0 && !cancelled_) {
    WriteNext();
  } else if (move_.has_value() && !cancelled_) {
    *waiting_.mutable_move() = *std::exchange(move_, std::nullopt);
    WriteNext();
  } else if (end_.has_value() && spans_ != nullptr && !cancelled_) {
    *waiting_.mutable_spans() = SpansToProto(std::exchange(spans_, nullptr)->Take());
    WriteNext();
  } else if (end_.has_value()) {
    finished_ = true;
    Finish(ToGrpcStatus(*end_));
  }
}

void TokenStream::WriteNext() {
  writing_.Clear();
  writing_.Swap(&waiting_);
  in_flight_ = true;
  write_began_ = clock_.Now();
  StartWrite(&writing_);
}

}  // namespace runahead
