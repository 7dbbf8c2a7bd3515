// The tokens of one lease as its decode worker sends them. A client of gRPC that reads outside of gRPC's own reactions,
// and so has to hold its call: that is done here and nowhere else.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/base/clock.h"
#include "server/task/task.h"
#include "server/task/wake.h"

namespace runahead {

// For one coroutine; Cancel from any thread.
class DecodeStream final : private grpc::ClientReadReactor<v1::DecodeReply> {
 public:
  // Begins the call, which ends after `timeout` by itself. `stub` must outlive the stream.
  DecodeStream(v1::Decode::StubInterface& stub, v1::DecodeRequest request, absl::Duration timeout);
  // Only once Finish() has returned, and not on a thread of gRPC's.
  ~DecodeStream() override = default;
  DecodeStream(const DecodeStream&) = delete;
  DecodeStream& operator=(const DecodeStream&) = delete;

  // Waits for the next reply; false at the end, however it came. At `until`, on `clock`, the call is cancelled.
  Task<bool> Read(v1::DecodeReply& reply, Clock& clock, absl::Time until = absl::InfiniteFuture())
      RUNAHEAD_EXCLUDES(mu_);

  // Waits for the call's end, once; after Read has said that it came.
  Task<absl::Status> Finish() RUNAHEAD_EXCLUDES(mu_);

  // The call is to end soon.
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override RUNAHEAD_EXCLUDES(mu_);
  void OnDone(const grpc::Status& status) override RUNAHEAD_EXCLUDES(mu_);
  std::optional<bool> TakeRead() RUNAHEAD_EXCLUDES(mu_);
  std::optional<grpc::Status> status() RUNAHEAD_EXCLUDES(mu_);

  // gRPC reads it when the call really begins: where the connection is to prove itself first, that is later.
  const v1::DecodeRequest request_;
  grpc::ClientContext context_;
  Wake wake_;
  bool ended_ = false;  // Read has said so; of the coroutine
  Mutex mu_;
  std::optional<bool> read_ RUNAHEAD_GUARDED_BY(mu_);  // whether it brought a reply; nothing while it runs
  std::optional<grpc::Status> status_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
