// A session once its first token is out: the other tokens.
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/router/session.h"
#include "server/router/worker_failure.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {

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

}  // namespace runahead
