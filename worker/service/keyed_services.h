// The services of a worker as its port offers them: only to who has the cluster's key, which is asked for before
// anything of a call's message is read. Each stands before the service that does the work, and a method that is not
// passed on here is UNIMPLEMENTED: none can be left open by oversight.
#pragma once

#include "runahead/v1/kept.grpc.pb.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/rpc/member_door.h"
#include "server/rpc/message_service.h"

namespace runahead {

// Thread-safe, as all of them. `door` and `service` outlive this, and this the server.
class KeyedWorker final : public MessageService<v1::Worker> {
 public:
  KeyedWorker(MemberDoor& door, v1::Worker::CallbackService& service);
  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* context,
                                            const v1::GetCapabilitiesRequest* request,
                                            v1::Capabilities* reply) override;
  grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* Control(
      grpc::CallbackServerContext* context) override;

 private:
  v1::Worker::CallbackService& service_;
};

class KeyedDecode final : public MessageService<v1::Decode> {
 public:
  KeyedDecode(MemberDoor& door, v1::Decode::CallbackService& service);
  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context, const v1::ReserveRequest* request,
                                    v1::ReserveReply* reply) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context, const v1::RenewRequest* request,
                                  v1::RenewReply* reply) override;
  grpc::ServerWriteReactor<v1::DecodeReply>* Generate(grpc::CallbackServerContext* context,
                                                      const v1::DecodeRequest* request) override;

 private:
  v1::Decode::CallbackService& service_;
};

class KeyedKeptKv final : public MessageService<v1::KeptKv> {
 public:
  KeyedKeptKv(MemberDoor& door, v1::KeptKv::CallbackService& service);
  grpc::ServerUnaryReactor* Look(grpc::CallbackServerContext* context, const v1::LookKeptRequest* request,
                                 v1::KeptMemory* reply) override;
  grpc::ServerUnaryReactor* Forget(grpc::CallbackServerContext* context, const v1::ForgetKeptRequest* request,
                                   v1::ForgetKeptReply* reply) override;

 private:
  v1::KeptKv::CallbackService& service_;
};

}  // namespace runahead
