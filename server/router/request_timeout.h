// A request's own time (GenerateRequest.timeout_s): the call that it came with may have more, or no end.
#pragma once

#include <atomic>
#include <memory>

#include "absl/time/time.h"
#include "runahead/v1/inference.pb.h"
#include "server/base/clock.h"
#include "server/router/cancel_token.h"
#include "server/task/task.h"
#include "server/task/wake.h"

namespace runahead {

// When the time of a request is up that came at `arrival`: the infinite future where it does not say.
absl::Time TimeoutOf(const v1::GenerateRequest& request, absl::Time arrival);

// Ends a request whose time is up. Thread-safe.
class RequestTimeout {
 public:
  // Clock and token outlive Watch().
  RequestTimeout(Clock& clock, CancelToken& cancel, absl::Time at) : clock_(clock), cancel_(cancel), at_(at) {}

  // Waits until then, or until the request has ended; cancels it with DEADLINE_EXCEEDED. Once.
  Task<> Watch();
  // The request has ended.
  void End();

 private:
  Clock& clock_;
  CancelToken& cancel_;
  const absl::Time at_;
  std::atomic<bool> ended_ = false;
  Wake news_;
};

}  // namespace runahead
