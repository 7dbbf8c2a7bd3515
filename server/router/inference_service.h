// The public service.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/drain_gate.h"
#include "server/router/generate_reactor.h"
#include "server/router/session.h"
#include "server/router/session_pool.h"
#include "server/rpc/message_service.h"

namespace runahead {

struct ServiceLimits {
  int max_sessions = 128;  // requests that run at once and have no token yet, nor wait for decode memory
  absl::Duration stall_timeout = absl::Seconds(30);
  int max_streams = 1024;  // all requests that run at once, each on a thread of its own
};

// Thread-safe. Reactors hand the work to session threads and never block themselves.
class InferenceService final : public MessageService<v1::Inference> {
 public:
  // `parts`, and what `door` names, must outlive the service; destroy the gRPC server before it.
  InferenceService(const RouterParts& parts, const ServiceLimits& limits, CallDoor door = {});

  // Where calls get their pass: the server's gate, which exists only once the server runs. Calls that come before are
  // UNAVAILABLE. `gate` must outlive all calls.
  void SetGate(DrainGate* gate) { gate_ = gate; }

  // Ends all Generate calls soon and with `why`, which is not OK: those that run, wait, and will come.
  void CutOff(const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetTrace(grpc::CallbackServerContext* context, const v1::GetTraceRequest* request,
                                     v1::Trace* response) override;

 private:
  // Generate. `memory` is what the request takes, which is kept.
  grpc::ServerWriteReactor<v1::GenerateResponse>* Begin(grpc::CallbackServerContext* context,
                                                        v1::GenerateRequest& request, ByteBudget::Lease memory);
  // All that can be said of the request before it waits; takes what it will take besides.
  absl::Status Check(const v1::GenerateRequest& request, ByteBudget::Lease& memory) const;
  absl::StatusOr<DrainGate::Pass> Enter();
  // Runs `work` on a session thread, or, once `cancel` is cancelled, soon in any case; RESOURCE_EXHAUSTED when it would
  // have to wait and the queue is full.
  absl::Status Submit(CancelToken& cancel, SessionPool::Work work);
  // The answer of a call that `work` makes on a session thread, where `status`, of what was looked at before, is OK.
  grpc::ServerUnaryReactor* Reply(std::function<absl::Status(CancelToken& cancel)> work,
                                  absl::Status status = absl::OkStatus());
  // The ids of the prompt that Generate would make of the same.
  absl::StatusOr<std::vector<int32_t>> IdsOf(const v1::TokenizeRequest& request, CancelToken& cancel);
  // `settled` is called when the request holds up no other's start any more.
  void RunSession(const std::shared_ptr<GenerateReactor>& reactor, v1::GenerateRequest request, absl::Time arrival,
                  const std::optional<TraceContext>& caller, ByteBudget::Lease memory,
                  const std::function<void()>& settled) RUNAHEAD_EXCLUDES(mu_);

  const RouterParts& parts_;
  const ServiceLimits limits_;
  std::atomic<DrainGate*> gate_ = nullptr;
  Mutex mu_;
  absl::flat_hash_set<std::shared_ptr<GenerateReactor>> calls_ RUNAHEAD_GUARDED_BY(mu_);  // not ended
  absl::Status cut_ RUNAHEAD_GUARDED_BY(mu_);                                             // not OK: what CutOff said
  SessionPool pool_;  // the last, for its threads use the rest
};

}  // namespace runahead
