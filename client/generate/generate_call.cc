#include "client/generate/generate_call.h"

#include <memory>
#include <utility>

#include "client/base/progress.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "server/rpc/tenant_key.h"

namespace runahead {

absl::Status GenerateCall(v1::Inference::StubInterface& stub, const v1::GenerateRequest& request,
                          const CallOptions& options, Interrupt& interrupt,
                          const std::function<void(v1::GenerateResponse)>& on_response, int* signal) {
  grpc::ClientContext context;
  SetTimeout(context, options.timeout);
  if (options.span) context.AddMetadata(kTraceparent, Traceparent(*options.span));
  if (!options.tenant.empty()) context.AddMetadata(kTenantKey, options.tenant);
  const Interrupt::Scope scope(interrupt, [&context] { context.TryCancel(); });
  Progress progress("Waiting for the first token");
  const auto stream = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    if (!response.has_started()) progress.Stop();
    on_response(std::move(response));
  }
  const grpc::Status status = stream->Finish();
  progress.Stop();
  *signal = scope.signal();
  return FromGrpcStatus(status);
}

}  // namespace runahead
