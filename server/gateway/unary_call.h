// One call to the router with one answer.
#pragma once

#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/gateway/call_context.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {

inline constexpr absl::Duration kUnaryTimeout = absl::Seconds(30);

// Calls `method` in the name of who asked, and `then` once with what came of it, on a thread of gRPC. A client that
// goes away cancels it.
template <typename Request, typename Response>
void CallUnary(const std::shared_ptr<CallContext>& context, Request request,
               const std::function<void(grpc::ClientContext*, const Request*, Response*,
                                        std::function<void(grpc::Status)>)>& method,
               std::function<void(absl::StatusOr<Response>)> then) {
  struct Call {
    std::shared_ptr<CallContext> owner;  // the first member, so that it ends last
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  const auto call = std::make_shared<Call>();
  call->owner = context;
  call->request = std::move(request);
  SetTimeout(call->context, kUnaryTimeout);
  context->Describe(call->context);
  context->OnGone([weak = std::weak_ptr<Call>(call)] {
    if (const auto held = weak.lock()) held->context.TryCancel();
  });
  method(&call->context, &call->request, &call->response, [call, then = std::move(then)](const grpc::Status& status) {
    if (!status.ok()) return then(FromGrpcStatus(status));
    then(std::move(call->response));
  });
}

}  // namespace runahead
