// The engine's side of the field's gateways: vLLM's engine protocol, answered by the public service of this process.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/clock.h"
#include "server/base/drain_gate.h"
#include "server/engine/open_writes.h"
#include "server/engine/tokenizer_stream.h"
#include "server/rpc/message_service.h"
#include "server/task/task.h"
#include "server/task/thread_executor.h"
#include "server/task/wake.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace runahead {

// What the router knows beside its public service.
struct EngineParts {
  struct Load {
    int64_t running = 0, waiting = 0;  // requests
  };
  Clock& clock;
  std::vector<int32_t> end_ids = {};     // of the model, which end an answer
  std::optional<int32_t> begin_id = {};  // of its begin token
  std::function<Load()> load = nullptr;  // any thread; quick
  // A zip of tokenizer.json, tokenizer_config.json and config.json, not empty. Asked on a thread of the service, again
  // only where it failed. Null: GetTokenizer is UNIMPLEMENTED.
  std::function<absl::StatusOr<std::shared_ptr<const std::string>>()> tokenizer_archive = nullptr;
  absl::Duration stall_timeout = absl::Seconds(30);  // of a client that takes nothing of a stream
};

// Thread-safe. It is a client of the public service, by whose rules everything here goes: its keys, limits, memory and
// errors.
class EngineService final : public MessageService<vllm::grpc::engine::VllmEngine> {
 public:
  // What `parts` and `door` name outlives the service; destroy the gRPC server before it.
  EngineService(EngineParts parts, CallDoor door);
  ~EngineService() override;

  // The public service, and where calls get their pass, both of a running server. Calls that come before are
  // UNAVAILABLE. Called once. `gate` outlives all calls; `serving` says whether requests can be answered, on any
  // thread.
  void Connect(std::shared_ptr<grpc::Channel> channel, DrainGate& gate, std::function<bool()> serving)
      RUNAHEAD_EXCLUDES(mu_);

 private:
  using Context = grpc::CallbackServerContext;
  using UnaryReactor = grpc::ServerUnaryReactor;
  struct Connection;
  // With a pass, with which a call of the public service may begin.
  struct Entered {
    std::shared_ptr<const Connection> to;
    DrainGate::Pass pass;
  };
  using Fill = std::function<void(const v1::Model& model)>;

  grpc::ServerWriteReactor<vllm::grpc::engine::GenerateResponse>* BeginGenerate(
      Context* context, vllm::grpc::engine::GenerateRequest& request, ByteBudget::Lease memory);
  grpc::ServerWriteReactor<vllm::grpc::engine::GetTokenizerChunk>* BeginTokenizer(
      Context* context, vllm::grpc::engine::GetTokenizerRequest& request, ByteBudget::Lease memory);
  UnaryReactor* HealthCheck(Context* context, const vllm::grpc::engine::HealthCheckRequest* request,
                            vllm::grpc::engine::HealthCheckResponse* response) override;
  UnaryReactor* Abort(Context* context, const vllm::grpc::engine::AbortRequest* request,
                      vllm::grpc::engine::AbortResponse* response) override;
  UnaryReactor* GetModelInfo(Context* context, const vllm::grpc::engine::GetModelInfoRequest* request,
                             vllm::grpc::engine::GetModelInfoResponse* response) override;
  UnaryReactor* GetServerInfo(Context* context, const vllm::grpc::engine::GetServerInfoRequest* request,
                              vllm::grpc::engine::GetServerInfoResponse* response) override;
  UnaryReactor* GetLoads(Context* context, const vllm::grpc::engine::GetLoadsRequest* request,
                         vllm::grpc::engine::GetLoadsResponse* response) override;

  // UNAVAILABLE before Connect, and once the gate is closed.
  absl::StatusOr<Entered> Enter() const RUNAHEAD_EXCLUDES(mu_);
  // Null before Connect.
  std::shared_ptr<const Connection> connection() const RUNAHEAD_EXCLUDES(mu_);
  // Has `fill` make the answer of what the public service says of its model.
  UnaryReactor* AnswerByModel(Context* context, Fill fill);
  EngineParts::Load LoadNow() const;
  // Ends, again and again, streams whose clients take nothing, also while the server drains.
  Task<> CutStalled();
  Task<> SendTokenizer(std::shared_ptr<TokenizerStream> stream);
  absl::StatusOr<std::shared_ptr<const SummedArchive>> Archive();

  const EngineParts parts_;
  const absl::Time began_;
  OpenWrites open_;
  mutable Mutex mu_;
  std::shared_ptr<const Connection> connection_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<const SummedArchive> archive_;  // of steps_' thread; null: not made yet
  std::atomic<bool> ending_ = false;
  Wake at_end_;
  ThreadExecutor steps_;  // the last, for what runs there uses the rest
};

}  // namespace runahead
