#include "client/base/health.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>

#include <optional>
#include <string>
#include <utility>

#include "kernels/base/mutex.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// Debian's gRPC has the health service but not its stubs. On the wire the request is field 1, a string, and the
// response field 1, a number: as in these messages of protobuf's own.
constexpr char kMethod[] = "/grpc.health.v1.Health/Check";
using Request = google::protobuf::StringValue;
using Response = google::protobuf::Int32Value;
constexpr int kServing = 1;

}  // namespace

absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout,
                         const std::string& service) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  Request asked;
  asked.set_value(service);
  const grpc::Slice request_bytes(asked.SerializeAsString());
  const grpc::ByteBuffer request(&request_bytes, 1);
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
  Response answer;
  if (response.DumpToSingleSlice(&bytes).ok() && answer.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size())) &&
      answer.value() == kServing) {
    return absl::OkStatus();
  }
  return absl::UnavailableError("it does not serve yet");
}

}  // namespace runahead
