#include "worker/service/keyed_services.h"

#include "server/rpc/status.h"

namespace runahead {
namespace {

// Ends a call of any streaming kind at once.
template <typename Reactor>
class RefusedStream final : public Reactor {
 public:
  explicit RefusedStream(const absl::Status& why) { this->Finish(ToGrpcStatus(why)); }
  void OnDone() override { delete this; }
};

// What a unary call becomes where the caller is no member: null where it is one.
grpc::ServerUnaryReactor* Refused(grpc::CallbackServerContext* context, MemberDoor& door) {
  const absl::Status member = door.Check(*context);
  if (member.ok()) return nullptr;
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(member));
  return reactor;
}

// The same for a streaming call.
template <typename Reactor>
Reactor* RefusedCall(grpc::CallbackServerContext* context, MemberDoor& door) {
  const absl::Status member = door.Check(*context);
  return member.ok() ? nullptr : new RefusedStream<Reactor>(member);
}

}  // namespace

grpc::ServerUnaryReactor* KeyedWorker::GetCapabilities(grpc::CallbackServerContext* context,
                                                       const v1::GetCapabilitiesRequest* request,
                                                       v1::Capabilities* reply) {
  if (auto* const refused = Refused(context, door_)) return refused;
  return service_.GetCapabilities(context, request, reply);
}

grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* KeyedWorker::Control(
    grpc::CallbackServerContext* context) {
  using Reactor = grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>;
  if (auto* const refused = RefusedCall<Reactor>(context, door_)) return refused;
  return service_.Control(context);
}

grpc::ServerUnaryReactor* KeyedDecode::Reserve(grpc::CallbackServerContext* context, const v1::ReserveRequest* request,
                                               v1::ReserveReply* reply) {
  if (auto* const refused = Refused(context, door_)) return refused;
  return service_.Reserve(context, request, reply);
}

grpc::ServerUnaryReactor* KeyedDecode::Renew(grpc::CallbackServerContext* context, const v1::RenewRequest* request,
                                             v1::RenewReply* reply) {
  if (auto* const refused = Refused(context, door_)) return refused;
  return service_.Renew(context, request, reply);
}

grpc::ServerWriteReactor<v1::DecodeReply>* KeyedDecode::Generate(grpc::CallbackServerContext* context,
                                                                 const v1::DecodeRequest* request) {
  if (auto* const refused = RefusedCall<grpc::ServerWriteReactor<v1::DecodeReply>>(context, door_)) return refused;
  return service_.Generate(context, request);
}

grpc::ServerBidiReactor<v1::HandoffRequest, v1::HandoffReply>* KeyedHandoff::Push(
    grpc::CallbackServerContext* context) {
  using Reactor = grpc::ServerBidiReactor<v1::HandoffRequest, v1::HandoffReply>;
  if (auto* const refused = RefusedCall<Reactor>(context, door_)) return refused;
  return service_.Push(context);
}

}  // namespace runahead
