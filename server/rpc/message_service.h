// A generated service some of whose methods are served as MessageCall and BidiMessageCall do it.
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/rpc/bidi_message_call.h"
#include "server/rpc/message_call.h"

namespace runahead {

// `Of` is what the proto file generates (v1::Inference). A subclass names in its constructor the methods it means; the
// others are served as ever.
template <typename Of>
class MessageService : public Of::CallbackService {
 protected:
  explicit MessageService(CallDoor door = {}) : door_(std::move(door)) {}

  // `handler` is a member function of the subclass.
  template <typename Self, typename Request, typename Response>
  void Unary(const char* method,
             grpc::ServerUnaryReactor* (Self::*handler)(grpc::CallbackServerContext*, const Request*, Response*)) {
    Serve<UnaryMessageCall<Request, Response>>(
        method, UnaryHandler<Request, Response>(
                    [self = static_cast<Self*>(this), handler](
                        grpc::CallbackServerContext* context, const Request* request, Response* response,
                        ByteBudget::Lease&) { return (self->*handler)(context, request, response); }));
  }
  // The same for a handler that takes more memory for the request.
  template <typename Self, typename Request, typename Response>
  void Unary(const char* method,
             grpc::ServerUnaryReactor* (Self::*handler)(grpc::CallbackServerContext*, const Request*, Response*,
                                                        ByteBudget::Lease&)) {
    Serve<UnaryMessageCall<Request, Response>>(
        method, UnaryHandler<Request, Response>(
                    [self = static_cast<Self*>(this), handler](
                        grpc::CallbackServerContext* context, const Request* request, Response* response,
                        ByteBudget::Lease& memory) { return (self->*handler)(context, request, response, memory); }));
  }
  template <typename Self, typename Request, typename Response>
  void Stream(const char* method,
              grpc::ServerWriteReactor<Response>* (Self::*handler)(grpc::CallbackServerContext*, const Request*)) {
    Serve<StreamMessageCall<Request, Response>>(
        method,
        StreamHandler<Request, Response>([self = static_cast<Self*>(this), handler](
                                             grpc::CallbackServerContext* context, Request& request,
                                             ByteBudget::Lease) { return (self->*handler)(context, &request); }));
  }
  // The same for a handler that keeps the request, and the lease with it.
  template <typename Self, typename Request, typename Response>
  void Stream(const char* method, grpc::ServerWriteReactor<Response>* (Self::*handler)(grpc::CallbackServerContext*,
                                                                                       Request&, ByteBudget::Lease)) {
    Serve<StreamMessageCall<Request, Response>>(
        method, StreamHandler<Request, Response>(
                    [self = static_cast<Self*>(this), handler](grpc::CallbackServerContext* context, Request& request,
                                                               ByteBudget::Lease memory) {
                      return (self->*handler)(context, request, std::move(memory));
                    }));
  }
  template <typename Self, typename Request, typename Response>
  void Bidi(const char* method,
            grpc::ServerBidiReactor<Request, Response>* (Self::*handler)(grpc::CallbackServerContext*)) {
    Serve<BidiMessageCall<Request, Response>>(
        method, BidiHandler<Request, Response>(
                    [self = static_cast<Self*>(this), handler](grpc::CallbackServerContext* context) {
                      return (self->*handler)(context);
                    }));
  }

 private:
  template <typename Call, typename Handler>
  void Serve(const char* method, Handler handler) {
    const google::protobuf::ServiceDescriptor* const service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(Of::service_full_name());
    const google::protobuf::MethodDescriptor* const found = service->FindMethodByName(method);
    RUNAHEAD_CHECK(found != nullptr);
    this->MarkMethodStreamed(found->index(), nullptr);  // for gRPC it is a stream in both directions from now on
    this->MarkMethodRawCallback(found->index(),
                                new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                                    [this, handler = std::move(handler)](grpc::CallbackServerContext* context) {
                                      return new Call(*context, door_, handler);
                                    }));
  }

  const CallDoor door_;
};

}  // namespace runahead
