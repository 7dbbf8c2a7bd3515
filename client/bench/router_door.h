// A router of ours, over gRPC.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "client/bench/bench_door.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"

namespace runahead {

// The request as the service takes it: greedy.
v1::GenerateRequest ToGenerateRequest(const BenchRequest& request, const std::string& model);

// Thread-safe.
class RouterDoor final : public BenchDoor {
 public:
  using Stub = v1::Inference::StubInterface;

  // Requests take turns on `stubs`, at least one: a connection has only so many calls at once. `model`: empty for the
  // one that is served. `timeout`: of a request.
  RouterDoor(std::vector<std::unique_ptr<Stub>> stubs, std::string model, absl::Duration timeout);
  ~RouterDoor() override;  // cancels, and waits until all have ended

  void Ask(const BenchRequest& request, std::shared_ptr<AnswerHearer> hearer) override RUNAHEAD_EXCLUDES(mu_);
  void Cancel() override RUNAHEAD_EXCLUDES(mu_);

 private:
  class Call;
  void Ended(const std::shared_ptr<Call>& call) RUNAHEAD_EXCLUDES(mu_);

  const std::vector<std::unique_ptr<Stub>> stubs_;
  const std::string model_;
  const absl::Duration timeout_;
  Mutex mu_;
  CondVar changed_;
  size_t next_stub_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool cancelled_ RUNAHEAD_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<std::shared_ptr<Call>> running_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
