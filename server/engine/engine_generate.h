// One Generate call of the engine service, and the call of the public service that answers it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/byte_budget.h"
#include "server/base/clock.h"
#include "server/base/drain_gate.h"
#include "server/engine/engine_answer.h"
#include "server/engine/engine_caller.h"
#include "server/engine/open_writes.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace runahead {

// Thread-safe. Lives, by holding itself, until gRPC is done with both calls. One message is on its way at a time: the
// next is read once the client has taken the one before, so that a client that reads slowly slows its answer down.
class EngineGenerate final : public grpc::ServerWriteReactor<vllm::grpc::engine::GenerateResponse>,
                             public OpenWrite,
                             public std::enable_shared_from_this<EngineGenerate> {
 public:
  // What it needs of its service, and gives back at its end.
  struct Holds {
    OpenWrites& open;
    Clock& clock;
    DrainGate::Pass pass;
    ByteBudget::Lease memory;  // of the request; then of what is kept of the answer
  };
  static std::shared_ptr<EngineGenerate> Create(grpc::CallbackServerContext& context, Holds holds);

  // Answers `request`, which may be moved from. Called once.
  void Start(vllm::grpc::engine::GenerateRequest& request, v1::Inference::StubInterface& stub);

  void CutIfStalled(absl::Time now, absl::Duration timeout) override RUNAHEAD_EXCLUDES(mu_);
  void Abort(const EngineCaller& caller, const absl::Status& why) override RUNAHEAD_EXCLUDES(mu_);

 private:
  class Upstream;

  EngineGenerate(grpc::CallbackServerContext& context, Holds holds);
  void OnWriteDone(bool ok) override RUNAHEAD_EXCLUDES(mu_);
  void OnCancel() override RUNAHEAD_EXCLUDES(mu_);
  void OnDone() override RUNAHEAD_EXCLUDES(mu_);
  void Came(const v1::GenerateResponse& event) RUNAHEAD_EXCLUDES(mu_);
  // Whether it is on its way to the client: it is there, and nothing has failed.
  bool BeginWrite(std::optional<vllm::grpc::engine::GenerateResponse> told) RUNAHEAD_EXCLUDES(mu_);
  // Keeps memory for what the answer keeps. RESOURCE_EXHAUSTED where there is none.
  absl::Status TakeAnswerMemory();
  // The call ends with `why`, whatever else comes.
  void Fail(const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);
  void CancelUpstream() RUNAHEAD_EXCLUDES(mu_);
  void Ended(const grpc::Status& status) RUNAHEAD_EXCLUDES(mu_);
  void End(const grpc::Status& status) RUNAHEAD_EXCLUDES(mu_);

  OpenWrites& open_;
  Clock& clock_;
  const EngineCaller caller_;
  std::string name_;
  // Used by one reaction at a time.
  std::optional<EngineAnswer> answer_;
  ByteBudget::Lease memory_;
  vllm::grpc::engine::GenerateResponse writing_;
  Mutex mu_;
  grpc::CallbackServerContext* context_ RUNAHEAD_GUARDED_BY(mu_);  // null once the call is done
  DrainGate::Pass pass_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<EngineGenerate> itself_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<Upstream> upstream_ RUNAHEAD_GUARDED_BY(mu_);  // null before it begins, and once it has ended
  std::optional<absl::Time> write_began_ RUNAHEAD_GUARDED_BY(mu_);
  absl::Status failure_ RUNAHEAD_GUARDED_BY(mu_);  // not OK: of our own, in place of upstream's status
};

}  // namespace runahead
