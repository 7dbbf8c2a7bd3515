#include "worker/service/keyed_services.h"

namespace runahead {
namespace {

CallDoor KeyedDoor(MemberDoor& door) {
  return {.admit = [&door](const grpc::ServerContextBase& context) { return door.Check(context); }};
}

}  // namespace

KeyedWorker::KeyedWorker(MemberDoor& door, v1::Worker::CallbackService& service)
    : MessageService(KeyedDoor(door)), service_(service) {
  Unary("GetCapabilities", &KeyedWorker::GetCapabilities);
  Bidi("Control", &KeyedWorker::Control);
}

grpc::ServerUnaryReactor* KeyedWorker::GetCapabilities(grpc::CallbackServerContext* context,
                                                       const v1::GetCapabilitiesRequest* request,
                                                       v1::Capabilities* reply) {
  return service_.GetCapabilities(context, request, reply);
}

grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* KeyedWorker::Control(
    grpc::CallbackServerContext* context) {
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

KeyedKeptKv::KeyedKeptKv(MemberDoor& door, v1::KeptKv::CallbackService& service)
    : MessageService(KeyedDoor(door)), service_(service) {
  Unary("Look", &KeyedKeptKv::Look);
  Unary("Forget", &KeyedKeptKv::Forget);
}

grpc::ServerUnaryReactor* KeyedKeptKv::Look(grpc::CallbackServerContext* context, const v1::LookKeptRequest* request,
                                            v1::KeptMemory* reply) {
  return service_.Look(context, request, reply);
}

grpc::ServerUnaryReactor* KeyedKeptKv::Forget(grpc::CallbackServerContext* context,
                                              const v1::ForgetKeptRequest* request, v1::ForgetKeptReply* reply) {
  return service_.Forget(context, request, reply);
}

}  // namespace runahead
