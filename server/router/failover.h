// Whether a request that has no token yet is planned anew when an attempt to compute its prompt has failed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/router/cancel_token.h"
#include "server/router/fleet.h"
#include "server/router/prefill_run.h"
#include "server/router/retry_budget.h"
#include "server/router/router_metrics.h"

namespace runahead {

// Of one request; for one thread.
class Failover {
 public:
  // So often is a request planned anew at most, and so many own failures of living workers does it bear.
  static constexpr int kMostRetries = 3;
  static constexpr int kMostFailures = 1;

  // What is given by reference must outlive it.
  Failover(std::string request_id, const Fleet& fleet, RetryBudget& budget, RouterMetrics& metrics)
      : request_id_(std::move(request_id)), fleet_(fleet), budget_(budget), metrics_(metrics) {}

  // After an attempt that ended with `status` by `failure`. OK: plan anew; the budget is charged. Otherwise what the
  // client is to be told: `status`, or INTERNAL, where the request was on a worker that died for the second time. It
  // may be what kills them.
  absl::Status Judge(const absl::Status& status, const PrefillRun::Failure& failure);

  // To be called before the attempt that follows: where a path broke, waits until those at its ends should have said
  // so, longer each time. A plan that is made at once would cross it again. Ends early at `until`; `cancel`'s status.
  absl::Status AwaitNews(CancelToken& cancel, Clock& clock, absl::Time until) const;

  // The attempt that followed has its workers.
  void WentOn();
  // How often it did.
  int count() const { return count_; }

  // What the client is told where the attempt that was to follow came to `status` before it had workers.
  absl::Status AfterAll(const absl::Status& status) const;

 private:
  // How often the request was there when a worker died, as far as is known: one that is back as the same process has
  // only been cut off.
  int Deaths() const;

  const std::string request_id_;
  const Fleet& fleet_;
  RetryBudget& budget_;
  RouterMetrics& metrics_;
  std::vector<std::shared_ptr<const LiveWorker>> lost_;  // with a part of it, or its lease
  int failures_ = 0;
  int count_ = 0;
  absl::Status last_;  // of the last attempt that was planned anew
  FailoverCause cause_ = FailoverCause::kWorkerLost;
};

}  // namespace runahead
