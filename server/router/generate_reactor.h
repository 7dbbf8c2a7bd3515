// The gRPC side of one Generate call.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/clock.h"
#include "server/base/drain_gate.h"
#include "server/router/cancel_token.h"
#include "server/router/response_queue.h"
#include "server/router/router_metrics.h"
#include "server/router/session.h"
#include "server/task/task.h"
#include "server/task/wake.h"

namespace runahead {

// Thread-safe. Lives, by holding itself, until gRPC is done with it.
class GenerateReactor final : public grpc::ServerWriteReactor<v1::GenerateResponse>, public ResponseSink {
 public:
  // `pass` is held, and `metrics` have the call in flight, until it has ended. A client that takes nothing for
  // `stall_timeout` while something waits for it is cancelled.
  static std::shared_ptr<GenerateReactor> Create(grpc::CallbackServerContext* context, DrainGate::Pass pass,
                                                 absl::Duration stall_timeout, Clock& clock, RouterMetrics& metrics);

  // Cancelled when the client goes away, its deadline passes, or it stalls.
  CancelToken& cancel() { return cancel_; }

  // On the router's clock; the infinite future where the client set none.
  absl::Time deadline() const { return deadline_; }

  void Send(v1::GenerateResponse response) override RUNAHEAD_EXCLUDES(mu_);

  // Ends the call once everything sent is written; nothing may be sent after it.
  void End(const absl::Status& status) RUNAHEAD_EXCLUDES(mu_);

  // Waits until the call has ended, which End() must have asked for. A client that stalls is cut off: CANCELLED says
  // so.
  Task<absl::Status> AwaitEnd() RUNAHEAD_EXCLUDES(mu_);

 private:
  GenerateReactor(grpc::CallbackServerContext* context, DrainGate::Pass pass, absl::Duration stall_timeout,
                  Clock& clock, RouterMetrics& metrics);
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Next() RUNAHEAD_REQUIRES(mu_);
  bool Stalled() const RUNAHEAD_REQUIRES(mu_);
  // Whether it has ended; cuts off a client that stalls, and says so in `cut`.
  bool LookForEnd(bool& cut) RUNAHEAD_EXCLUDES(mu_);
  absl::Status StalledStatus() const;

  grpc::CallbackServerContext* const context_;
  const absl::Duration stall_timeout_;
  Clock& clock_;
  RouterMetrics& metrics_;
  const absl::Time deadline_;
  const absl::Duration slack_;  // a cancel so shortly before the deadline is the deadline's
  CancelToken cancel_;
  Wake at_end_;
  Mutex mu_;
  DrainGate::Pass pass_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<GenerateReactor> itself_ RUNAHEAD_GUARDED_BY(mu_);
  ResponseQueue queue_ RUNAHEAD_GUARDED_BY(mu_);
  v1::GenerateResponse writing_ RUNAHEAD_GUARDED_BY(mu_);  // while write_began_ is set
  std::optional<absl::Time> write_began_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<grpc::Status> end_ RUNAHEAD_GUARDED_BY(mu_);
  bool finish_called_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool ended_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

// As the client gets it: UNAVAILABLE and RESOURCE_EXHAUSTED say when to try again.
grpc::Status ClientStatus(const absl::Status& status);

}  // namespace runahead
