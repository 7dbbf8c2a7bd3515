// Hand-off over gRPC, for hosts that no faster link joins: one stream from each prefill worker to each decode worker,
// one slice after the other, in chunks. The one place outside the services where link code speaks gRPC.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/task_thread.h"
#include "runahead/v1/kv.grpc.pb.h"
#include "worker/handoff/retrying_sender.h"
#include "worker/handoff/slice_receiver.h"

namespace runahead {

// The channel to the KvHandoff service of a decode worker; apart from the ones that tokens travel on. Thread-safe.
using HandoffChannel = std::function<absl::StatusOr<std::shared_ptr<grpc::Channel>>(const PeerId&)>;

// For a RetryingSender.
std::shared_ptr<SliceTransport> MakeGrpcSliceTransport(HandoffChannel channel);

// Takes slices into a store. Thread-safe; no call blocks; one thread of its own, for hashing. `receiver` outlives the
// service, and the service outlives the server.
class GrpcHandoffService final : public v1::KvHandoff::CallbackService {
 public:
  explicit GrpcHandoffService(SliceReceiver& receiver) : receiver_(receiver) {}
  grpc::ServerBidiReactor<v1::HandoffRequest, v1::HandoffReply>* Push(grpc::CallbackServerContext* context) override;

 private:
  SliceReceiver& receiver_;
  TaskThread hashing_;
};

}  // namespace runahead
