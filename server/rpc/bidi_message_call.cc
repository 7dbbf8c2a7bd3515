#include "server/rpc/bidi_message_call.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/rpc/parse_message.h"
#include "server/rpc/status.h"
#include "server/rpc/unfold_message.h"

namespace runahead {

void BidiCall::Begin() {
  const absl::Status admitted = door_.admit ? door_.admit(context_) : absl::OkStatus();
  if (!admitted.ok()) return Finish(ToGrpcStatus(admitted));
  reactor_ = Serve();
  if (reactor_ == nullptr)
    return Finish(ToGrpcStatus(absl::UnimplementedError("this server does not serve the method")));
  // gRPC held a lock of the reactor while it was bound, so no reaction could come of what it wanted.
  if (into_ != nullptr) Next();
}

void BidiCall::Receive(google::protobuf::Message& into) {
  into_ = &into;
  if (reactor_ != nullptr) Next();
}

void BidiCall::Next() {
  if (door_.arrivals == nullptr) return Read();
  door_.arrivals->Enter(*this, context_.peer());
}

void BidiCall::GiveUp(const absl::Status& why) {
  Remember(why);
  Received(false);
}

void BidiCall::Remember(const absl::Status& why) {
  MutexLock lock(mu_);
  refused_ = why;
}

absl::Status BidiCall::Parse() {
  RUNAHEAD_RETURN_IF_ERROR(CheckLength(received_, door_.longest));
  ByteBudget::Lease memory = door_.memory != nullptr ? door_.memory->None() : ByteBudget::Lease();
  RUNAHEAD_RETURN_IF_ERROR(UnfoldMessage(received_, door_.longest, memory));
  RUNAHEAD_RETURN_IF_ERROR(ParseMessage(received_, *into_));
  received_.Clear();
  return absl::OkStatus();
}

void BidiCall::OnReadDone(bool ok) {
  const size_t came = ok ? received_.Length() : 0;
  const absl::Status status = ok ? Parse() : absl::OkStatus();
  if (door_.arrivals != nullptr && !door_.arrivals->Arrived(*this, came)) return;
  if (!status.ok()) Remember(status);
  Received(ok && status.ok());
}

void BidiCall::Send(const google::protobuf::Message& message, grpc::WriteOptions options) {
  // What cannot be serialized is a message of ours without a required field or of 2 GiB: neither exists.
  RUNAHEAD_CHECK(SerializeMessage(message, written_).ok());
  if (door_.departures != nullptr) {
    const absl::Status departs =
        door_.departures->Enter(*this, context_.peer(), static_cast<int64_t>(written_.Length()));
    if (!departs.ok()) {
      Remember(departs);
      return Sent(false);
    }
  }
  StartWrite(&written_, options);
}

void BidiCall::SendLast(const google::protobuf::Message& message, grpc::WriteOptions options, grpc::Status status) {
  RUNAHEAD_CHECK(SerializeMessage(message, written_).ok());
  StartWriteAndFinish(&written_, options, std::move(status));
}

void BidiCall::OnWriteDone(bool ok) {
  written_.Clear();
  if (door_.departures != nullptr) door_.departures->Leave(*this);
  Sent(ok);
}

void BidiCall::End(grpc::Status status) {
  {
    MutexLock lock(mu_);
    if (!refused_.ok()) status = ToGrpcStatus(refused_);
  }
  Finish(std::move(status));
}

void BidiCall::OnCancel() {
  if (reactor_ == nullptr) return;
  reactor_->OnCancel();
  if (door_.arrivals != nullptr && door_.arrivals->Abandon(*this)) Received(false);
}

void BidiCall::OnDone() {
  if (reactor_ != nullptr) reactor_->OnDone();
  delete this;
}

}  // namespace runahead
