// The control stream to one worker: commands in the order written, one write in flight; reports as they come.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/router/sequencer.h"

namespace runahead {

// Thread-safe.
class ControlStream final : public grpc::ClientBidiReactor<v1::ControlCommand, v1::ControlReport>, public CommandSink {
 public:
  // Both are called on gRPC's threads and must not block. `broken` is called once, last, with a status that is not OK.
  struct Callbacks {
    std::function<void(const v1::ControlReport&)> report;
    std::function<void(absl::Status)> broken;
  };

  // `stub` must live until `broken` has been called, and so must what is returned: it may not be given up on a thread
  // of gRPC's.
  static std::shared_ptr<ControlStream> Open(v1::Worker::StubInterface& stub, Callbacks callbacks);

  void Write(v1::ControlCommand command) override RUNAHEAD_EXCLUDES(mu_);

  // Ends the stream; `broken` follows.
  void Close() { context_.TryCancel(); }

 private:
  explicit ControlStream(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  const Callbacks callbacks_;
  v1::ControlReport report_;               // of the read in flight
  std::shared_ptr<ControlStream> itself_;  // until OnDone: gRPC holds plain pointers
  Mutex mu_;
  std::deque<v1::ControlCommand> queue_ RUNAHEAD_GUARDED_BY(mu_);  // the front one is being written
  bool open_ RUNAHEAD_GUARDED_BY(mu_) = true;
};

}  // namespace runahead
