#include "server/rpc/message_call.h"

#include "kernels/base/status_macros.h"
#include "server/rpc/status.h"
#include "server/rpc/take_memory.h"
#include "server/rpc/unfold_message.h"

namespace runahead {

void MessageCall::Begin() {
  const absl::Status admitted = door_.admit ? door_.admit(context_) : absl::OkStatus();
  if (!admitted.ok()) return Finish(ToGrpcStatus(admitted));
  if (door_.arrivals == nullptr) return Read();
  door_.arrivals->Enter(*this, context_.peer());
}

absl::Status MessageCall::Parse() {
  RUNAHEAD_RETURN_IF_ERROR(CheckLength(received_, door_.longest));
  if (door_.memory != nullptr) memory_ = door_.memory->None();
  RUNAHEAD_RETURN_IF_ERROR(UnfoldMessage(received_, door_.longest, memory_));
  if (door_.memory != nullptr) {
    const int64_t parsed = ParsedBytes(received_, *request().GetDescriptor());
    RUNAHEAD_RETURN_IF_ERROR(TakeMemory(memory_, memory_.bytes() + parsed));
  }
  RUNAHEAD_RETURN_IF_ERROR(ParseMessage(received_, request()));
  received_.Clear();
  // It was counted as the most that it might take.
  const auto taken = static_cast<int64_t>(request().SpaceUsedLong());
  if (taken < memory_.bytes()) RUNAHEAD_CHECK(memory_.Resize(taken));
  return absl::OkStatus();
}

void MessageCall::GiveUp(const absl::Status& why) {
  Finish(ToGrpcStatus(why));
}

void MessageCall::Bound(grpc::internal::ServerReactor* reactor) {
  bool cancelled;
  {
    MutexLock lock(mu_);
    reactor_ = reactor;
    cancelled = cancelled_;
  }
  if (cancelled) reactor->OnCancel();
}

absl::Status MessageCall::Depart(size_t bytes) {
  if (door_.departures == nullptr) return absl::OkStatus();
  return door_.departures->Enter(*this, context_.peer(), static_cast<int64_t>(bytes));
}

void MessageCall::OnReadDone(bool ok) {
  const size_t came = ok ? received_.Length() : 0;
  absl::Status status = absl::InvalidArgumentError("the call ended, or was half closed, before it brought a message");
  if (ok) status = Parse();  // while it still counts as one that is read, for it takes that memory, too
  if (door_.arrivals != nullptr && !door_.arrivals->Arrived(*this, came)) return;
  if (status.ok()) status = Serve();
  if (!status.ok()) Finish(ToGrpcStatus(status));
}

void MessageCall::OnCancel() {
  grpc::internal::ServerReactor* reactor;
  {
    MutexLock lock(mu_);
    cancelled_ = true;
    reactor = reactor_;
  }
  if (reactor != nullptr) return reactor->OnCancel();  // it lives until OnDone, which comes after this
  if (door_.arrivals != nullptr && door_.arrivals->Abandon(*this)) Finish(grpc::Status::CANCELLED);
}

void MessageCall::OnDone() {
  grpc::internal::ServerReactor* reactor;
  {
    MutexLock lock(mu_);
    reactor = reactor_;
  }
  if (door_.departures != nullptr) door_.departures->Leave(*this);
  if (reactor != nullptr) reactor->OnDone();
  delete this;
}

}  // namespace runahead
