#include "server/rpc/message_call.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include "server/rpc/status.h"

namespace runahead {

void MessageCall::Bound(grpc::internal::ServerReactor* reactor) {
  bool cancelled;
  {
    MutexLock lock(mu_);
    reactor_ = reactor;
    cancelled = cancelled_;
  }
  if (cancelled) reactor->OnCancel();
}

grpc::Status MessageCall::Serialize(const google::protobuf::Message& message, grpc::ByteBuffer& bytes) {
  bool own_buffer = false;
  return grpc::SerializationTraits<google::protobuf::Message>::Serialize(message, &bytes, &own_buffer);
}

void MessageCall::OnReadDone(bool ok) {
  absl::Status status = absl::InvalidArgumentError("the call ended, or was half closed, before it brought a message");
  if (ok) status = Handle(received_);
  if (!status.ok()) Finish(ToGrpcStatus(status));
}

void MessageCall::OnCancel() {
  grpc::internal::ServerReactor* reactor;
  {
    MutexLock lock(mu_);
    cancelled_ = true;
    reactor = reactor_;
  }
  if (reactor != nullptr) reactor->OnCancel();  // it lives until OnDone, which comes after this
}

void MessageCall::OnDone() {
  grpc::internal::ServerReactor* reactor;
  {
    MutexLock lock(mu_);
    reactor = reactor_;
  }
  if (reactor != nullptr) reactor->OnDone();
  delete this;
}

}  // namespace runahead
