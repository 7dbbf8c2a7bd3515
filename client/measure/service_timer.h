// Times partitions on the workers behind a router that runs with --experiments.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"

namespace runahead {

// Used by one thread, but for Cancel.
class ServiceTimer {
 public:
  // `stub` must outlive it. Asks the service for ordinary token ids to make prompts of.
  static absl::StatusOr<std::vector<int32_t>> OrdinaryIds(v1::Inference::StubInterface& stub);
  ServiceTimer(v1::Inference::StubInterface& stub, std::vector<int32_t> ids);

  // Sends a prompt of random ids, cut into `parts`, for one token. Seconds from the beginning of the work on the
  // workers to the first token at the router, by the router's account: without queues and without our way to it.
  // Errors: the service's, of which INVALID_ARGUMENT about `experiment` says how to start the router; CANCELLED.
  absl::StatusOr<double> Time(absl::Span<const int64_t> parts) RUNAHEAD_EXCLUDES(mu_);

  // The same on the first workers of the longest chain so far, whose names and order must be known by an earlier run.
  // The router takes others where one of them has not ended its last job yet: such a run is repeated. UNAVAILABLE:
  // that did not help for a second.
  absl::StatusOr<double> TimeFromHead(absl::Span<const int64_t> parts) RUNAHEAD_EXCLUDES(mu_);

  // Ends the call that runs and all further ones with CANCELLED. Any thread.
  void Cancel() RUNAHEAD_EXCLUDES(mu_);

  // Names of the workers of the longest chain so far, head first.
  const std::vector<std::string>& workers() const { return workers_; }

 private:
  void Pause(absl::Duration duration) RUNAHEAD_EXCLUDES(mu_);  // or until Cancel
  v1::GenerateRequest Request(absl::Span<const int64_t> parts);
  absl::StatusOr<double> Value(const v1::Started& started, const v1::Finished& finished,
                               absl::Span<const int64_t> parts);

  v1::Inference::StubInterface& stub_;
  const std::vector<int32_t> ids_;
  std::mt19937 random_;
  std::vector<std::string> workers_;
  std::vector<std::string> chain_;  // of the last run
  Mutex mu_;
  CondVar changed_;
  grpc::ClientContext* running_ RUNAHEAD_GUARDED_BY(mu_) = nullptr;
  bool cancelled_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

}  // namespace runahead
