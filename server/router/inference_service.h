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
#include "server/router/holding_reactor.h"
#include "server/router/key_door.h"
#include "server/router/request_timeout.h"
#include "server/router/session.h"
#include "server/router/session_places.h"
#include "server/rpc/message_service.h"
#include "server/task/task.h"
#include "server/task/thread_executor.h"

namespace runahead {

struct ServiceLimits {
  int max_sessions = 1024;  // requests that run at once and have no token yet, nor wait for decode memory
  absl::Duration stall_timeout = absl::Seconds(30);
  int max_streams = 16384;  // all requests that run at once
};

// Thread-safe. A request is a coroutine, from its arrival to its end: reactors begin it and never block themselves.
class InferenceService final : public MessageService<v1::Inference> {
 public:
  // `parts`, `keys` and what `door` names must outlive the service; destroy the gRPC server before it. `keys` says who
  // may call; null: anybody.
  InferenceService(const RouterParts& parts, const ServiceLimits& limits, CallDoor door = {}, KeyDoor* keys = nullptr);
  ~InferenceService() override;

  // Where calls get their pass: the server's gate, which exists only once the server runs. Calls that come before are
  // UNAVAILABLE. `gate` must outlive all calls.
  void SetGate(DrainGate* gate) { gate_ = gate; }

  // Ends all Generate calls soon and with `why`, which is not OK: those that run, wait, and will come.
  void CutOff(const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);

  // Tokenize. `memory` is what the request takes.
  grpc::ServerUnaryReactor* BeginTokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                          v1::TokenizeResponse* response, ByteBudget::Lease& memory);
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
  absl::Status Check(const v1::TokenizeRequest& request, ByteBudget::Lease& memory) const;
  absl::StatusOr<DrainGate::Pass> Enter();
  // What answers a unary call; `cancel` lives until it has ended.
  using Work = std::function<Task<absl::Status>(CancelToken& cancel)>;
  // The answer of a call that `work` makes in its turn, where `status`, of what was looked at before, is OK.
  grpc::ServerUnaryReactor* Reply(Work work, absl::Status status = absl::OkStatus());
  static Task<> RunReply(HoldingReactor* reactor, std::unique_ptr<SessionPlaces::Place> place, Work work);
  Task<absl::Status> AnswerTokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse& response,
                                    CancelToken& cancel);
  Task<absl::Status> AnswerDetokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse& response);
  // The ids of the prompt that Generate would make of the same.
  Task<absl::StatusOr<std::vector<int32_t>>> IdsOf(const v1::TokenizeRequest& request, CancelToken& cancel);
  // Keeps the call until `timeout` has come to its end.
  Task<> WatchTimeout(std::shared_ptr<GenerateReactor> reactor, std::shared_ptr<RequestTimeout> timeout);
  Task<> RunSession(std::shared_ptr<GenerateReactor> reactor, std::unique_ptr<SessionPlaces::Place> place,
                    v1::GenerateRequest request, absl::Time arrival, std::optional<TraceContext> caller,
                    ByteBudget::Lease memory, RequestOwner owner) RUNAHEAD_EXCLUDES(mu_);
  // `answering`, a Session or an AnswerGroup, gives what the call is told; then it gives the place back, and waits
  // until the client has all.
  template <typename Answering>
  Task<> Answer(Answering& answering, GenerateReactor& reactor, std::unique_ptr<SessionPlaces::Place> place,
                RequestTimeout* timeout, absl::Time arrival);
  // To its end, beside the call that brought it.
  Task<> Leave(std::unique_ptr<LeavingPrompt> prompt);
  void Forget(const std::shared_ptr<GenerateReactor>& reactor) RUNAHEAD_EXCLUDES(mu_);

  const RouterParts& parts_;
  const ServiceLimits limits_;
  const KeyDoor* const keys_;
  std::atomic<DrainGate*> gate_ = nullptr;
  Mutex mu_;
  absl::flat_hash_set<std::shared_ptr<GenerateReactor>> calls_ RUNAHEAD_GUARDED_BY(mu_);  // not ended
  absl::Status cut_ RUNAHEAD_GUARDED_BY(mu_);                                             // not OK: what CutOff said
  SessionPlaces places_;
  CancelToken ends_;      // of what goes on without a call
  ThreadExecutor steps_;  // the last, for what runs there uses the rest
};

}  // namespace runahead
