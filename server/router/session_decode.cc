// A session once its first token is out: the other tokens, from the decode worker of one attempt.
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/router/session.h"
#include "server/router/worker_failure.h"

namespace runahead {
namespace {

// Where a sequence has moved and is traced, its stream waits so long for the spans of where it was.
constexpr absl::Duration kSpansPatience = absl::Seconds(1);

// A sequence that is not wanted any more ends at the next step. Nobody's answer waits longer for that.
constexpr absl::Duration kStopPatience = absl::Milliseconds(200);

}  // namespace

Task<absl::Status> Session::Decode() {
  absl::Status status = co_await DecodeOnLease();
  while (GoOnWhereMoved()) status = co_await DecodeOnLease();
  if (status.ok() && !answer_->reason()) co_return cancel_.status();  // it has moved, and does not go on there
  co_return status;
}

Task<absl::Status> Session::DecodeOnLease() {
  const LiveWorker& worker = lease_->worker();
  const absl::Duration left =
      deadline_ == absl::InfiniteFuture() ? absl::InfiniteDuration() : deadline_ - router_.clock.Now();
  DecodeStream stream(*worker.decode, MakeDecodeRequest(), left);
  lease_->Decodes();
  const auto stop = [&stream] { stream.Cancel(); };
  const CancelToken::Subscription on_cancel = cancel_.OnCancel(stop);
  const CancelToken::Subscription on_lost = worker.lost->OnCancel(stop);
  v1::DecodeReply reply;
  bool more = false;
  if (prefill_needed_) {
    // Tokens come once the whole prompt's KV is in: what happens to the chain after that does not matter.
    const CancelToken::Subscription on_failed = run_->failed().OnCancel(stop);
    const bool began = co_await ReadTokens(stream, reply);
    prefill_needed_ = !began;
    more = began;
  } else {
    more = co_await ReadTokens(stream, reply);  // of one that has moved, or continues a beginning
  }
  while (more) {
    EndRest();  // which its worker computed first
    const int had = answer_->tokens();
    SendTokens(reply.tokens());
    if (reply.tokens_size() > 0) LeavePrompt();
    if (answer_->reason()) break;
    if (answer_->tokens() > had) failover_.GotOn(router_.clock.Now());
    co_await ConsiderMove();
    more = co_await ReadTokens(stream, reply);
  }
  // The decode worker ends by itself what it knows to be the end; a stop string it does not know. It is told, and its
  // call ends once it has kept the sequence, for the client's next turn, and sent its spans.
  absl::Time until = absl::InfiniteFuture();
  if (answer_->stopped_by_text()) {
    lease_->GiveUp();
    if (report_.trace() == nullptr) until = router_.clock.Now() + kStopPatience;
  }
  while (more) more = co_await ReadTokens(stream, reply, until);
  const absl::Status ended = co_await stream.Finish();
  co_return EndOfDecode(ended);
}

Task<bool> Session::ReadTokens(DecodeStream& stream, v1::DecodeReply& reply, absl::Time until) {
  while (true) {
    const bool read = co_await stream.Read(reply, router_.clock, until);
    if (!read) co_return false;
    if (reply.has_spans()) {
      report_.AddSpans(lease_->worker(), reply.spans());
    } else if (reply.has_move()) {
      TakeMoveEnd(reply.move());
      if (move_.tokens) until = router_.clock.Now() + (report_.trace() != nullptr ? kSpansPatience : absl::Duration());
    } else if (!move_.tokens) {
      co_return true;
    }
  }
}

absl::Status Session::EndOfDecode(const absl::Status& status) {
  Ejections& ejections = router_.fleet.ejections();
  const LiveWorker& worker = lease_->worker();
  if (answer_->reason()) {
    ejections.Judge(WorkerRole::kDecode, worker.index, absl::OkStatus());
    return absl::OkStatus();
  }
  if (move_.tokens) return absl::OkStatus();  // it goes on elsewhere
  decode_end_ = status;
  if (status.ok()) {
    decode_end_ = absl::InternalError(absl::StrCat("ended after ", answer_->tokens(), " of ", max_tokens_, " tokens"));
  }
  RUNAHEAD_RETURN_IF_ERROR(cancel_.status());
  RUNAHEAD_RETURN_IF_ERROR(InTime("while tokens were generated"));
  RUNAHEAD_RETURN_IF_ERROR(worker.lost->status());
  if (prefill_needed_) RUNAHEAD_RETURN_IF_ERROR(run_->failed().status());
  if (IsToBlame(*decode_end_)) ejections.Judge(WorkerRole::kDecode, worker.index, *decode_end_);
  return OfWorker(absl::StrCat("decode worker ", worker.capabilities.name()), *decode_end_);
}

v1::DecodeRequest Session::MakeDecodeRequest() const {
  v1::DecodeRequest request;
  *request.mutable_lease() = lease_->id();
  request.set_request_id(request_.request_id());
  if (report_.trace() != nullptr) request.set_traceparent(report_.trace()->traceparent());
  // What the router has is the truth, whoever drew it, and whether its text was sent or is held back.
  const std::vector<int32_t>& output = answer_->ids();
  auto& ids = *request.mutable_prompt_ids();
  ids.Reserve(static_cast<int>(prompt_.size() + output.size()));
  ids.Add(prompt_.begin(), prompt_.end());
  if (moved_tokens_) request.set_moved_tokens(*moved_tokens_);
  if (output.size() == 1 && !moved_tokens_) {
    request.set_first_token(output.front());
  } else {
    request.set_output_from(static_cast<int32_t>(prompt_.size()));
    ids.Add(output.begin(), output.end());
  }
  request.set_max_tokens(max_tokens_);
  *request.mutable_sampling() = sampling_;
  if (rules_) *request.mutable_rules() = *rules_;
  request.mutable_stop_ids()->Add(stop_ids_.begin(), stop_ids_.end());
  return request;
}

}  // namespace runahead
