#include "server/rpc/health_check.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>

#include <utility>

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

grpc::ByteBuffer RequestFor(const std::string& service) {
  Request asked;
  asked.set_value(service);
  const grpc::Slice bytes(asked.SerializeAsString());
  return grpc::ByteBuffer(&bytes, 1);
}

absl::Status Judge(const grpc::ByteBuffer& response) {
  grpc::Slice bytes;
  Response answer;
  if (response.DumpToSingleSlice(&bytes).ok() && answer.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size())) &&
      answer.value() == kServing) {
    return absl::OkStatus();
  }
  return absl::UnavailableError("it does not serve yet");
}

}  // namespace

void HealthCheck::Ask(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout, const std::string& service,
                      std::function<void(absl::Status)> done) {
  SetTimeout(context_, timeout);
  request_ = RequestFor(service);
  grpc::GenericStub(channel).UnaryCall(&context_, kMethod, {}, &request_, &response_,
                                       [this, done = std::move(done)](const grpc::Status& status) {
                                         done(status.ok() ? Judge(response_) : FromGrpcStatus(status));
                                       });
}

}  // namespace runahead
