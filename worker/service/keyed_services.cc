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

// For the methods that MessageService serves.
CallDoor KeyedDoor(MemberDoor& door) {
  return {.admit = [&door](const grpc::ServerContextBase& context) { return door.Check(context); }};
}

// For the others: what a call becomes where the caller is no member. Null where it is one.
template <typename Reactor>
Reactor* RefusedCall(grpc::CallbackServerContext* context, MemberDoor& door) {
  const absl::Status member = door.Check(*context);
  return member.ok() ? nullptr : new RefusedStream<Reactor>(member);
}

}  // namespace

KeyedWorker::KeyedWorker(MemberDoor& door, v1::Worker::CallbackService& service)
    : MessageService(KeyedDoor(door)), door_(door), service_(service) {
  Unary("GetCapabilities", &KeyedWorker::GetCapabilities);
}

grpc::ServerUnaryReactor* KeyedWorker::GetCapabilities(grpc::CallbackServerContext* context,
                                                       const v1::GetCapabilitiesRequest* request,
                                                       v1::Capabilities* reply) {
  return service_.GetCapabilities(context, request, reply);
}

grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* KeyedWorker::Control(
    grpc::CallbackServerContext* context) {
  using Reactor = grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>;
  if (auto* const refused = RefusedCall<Reactor>(context, door_)) return refused;
  return service_.Control(context);
}

KeyedDecode::KeyedDecode(MemberDoor& door, v1::Decode::CallbackService& service)
    : MessageService(KeyedDoor(door)), service_(service) {
  Unary("Reserve", &KeyedDecode::Reserve);
  Unary("Renew", &KeyedDecode::Renew);
  Stream("Generate", &KeyedDecode::Generate);
}

grpc::ServerUnaryReactor* KeyedDecode::Reserve(grpc::CallbackServerContext* context, const v1::ReserveRequest* request,
                                               v1::ReserveReply* reply) {
  return service_.Reserve(context, request, reply);
}

grpc::ServerUnaryReactor* KeyedDecode::Renew(grpc::CallbackServerContext* context, const v1::RenewRequest* request,
                                             v1::RenewReply* reply) {
  return service_.Renew(context, request, reply);
}

grpc::ServerWriteReactor<v1::DecodeReply>* KeyedDecode::Generate(grpc::CallbackServerContext* context,
                                                                 const v1::DecodeRequest* request) {
  return service_.Generate(context, request);
}

grpc::ServerBidiReactor<v1::HandoffRequest, v1::HandoffReply>* KeyedHandoff::Push(
    grpc::CallbackServerContext* context) {
  using Reactor = grpc::ServerBidiReactor<v1::HandoffRequest, v1::HandoffReply>;
  if (auto* const refused = RefusedCall<Reactor>(context, door_)) return refused;
  return service_.Push(context);
}

}  // namespace runahead
