#include "client/up/health.h"

#include <grpcpp/generic/generic_stub.h>

#include <optional>
#include <string>
#include <utility>

#include "kernels/base/mutex.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// Debian's gRPC has the health service but not its stubs. On the wire the request for the whole server is empty, and
// the response is field 1, a varint, where 1 means SERVING.
constexpr char kMethod[] = "/grpc.health.v1.Health/Check";
constexpr absl::string_view kServing("\x08\x01", 2);

}  // namespace

absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  Mutex mu;
  CondVar changed;
  std::optional<grpc::Status> result;
  grpc::GenericStub stub(channel);
  stub.UnaryCall(&context, kMethod, {}, &request, &response, [&](grpc::Status status) {
    MutexLock lock(mu);
    result = std::move(status);
    changed.NotifyAll();
  });
  MutexLock lock(mu);
  while (!result.has_value()) changed.Wait(mu);
  if (!result->ok()) return FromGrpcStatus(*result);
  grpc::Slice bytes;
  if (response.DumpToSingleSlice(&bytes).ok() && std::string(bytes.begin(), bytes.end()) == kServing) {
    return absl::OkStatus();
  }
  return absl::UnavailableError("it does not serve yet");
}

}  // namespace runahead
