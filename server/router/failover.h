// Whether a request goes on with other workers when those that it rests on have failed it: without a token it is
// planned anew, with some its KV is rebuilt, and its answer goes on behind them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/router/fleet.h"
#include "server/router/prefill_run.h"
#include "server/router/retry_budget.h"
#include "server/router/router_metrics.h"

namespace runahead {

// Says who is to blame where a call to decode ended with `ended` before the answer did: the worker was lost, failed by
// its own fault, or cannot be reached; or the request is one that no worker could have carried out.
PrefillRun::Failure DecodeFailure(const absl::Status& ended, const std::shared_ptr<const LiveWorker>& worker);

// News of a worker's death comes within so long: it may be silent first, and its stream may be resumed.
inline constexpr absl::Duration kNewsOfDeath = absl::Seconds(10);

// Of one request; for one thread.
//
// Dead is a worker that was lost with the request, unless it stopped as it was asked to or has been there again as the
// same process. So one that was silent for too long counts from then until it is back. What the request outlives is
// forgotten: a worker that is back once has not died, whatever becomes of it later; one that did not answer, and is not
// lost although the answer has been going on elsewhere for kNewsOfDeath, was not killed by the request.
class Failover {
 public:
  // So often in a row, without a token more, does a request go on with others at most, and so many own failures of
  // living workers does it bear in all.
  static constexpr int kMostRetries = 3;
  static constexpr int kMostFailures = 1;

  // What is given by reference must outlive it.
  Failover(std::string request_id, const Fleet& fleet, RetryBudget& budget, RouterMetrics& metrics)
      : request_id_(std::move(request_id)), fleet_(fleet), budget_(budget), metrics_(metrics) {}

  // After an attempt that ended with `status` by `failure`, when the request was at `stage`. OK: go on with others; the
  // budget is charged, unless the answer got on since the last time. Otherwise what the client is to be told: `status`,
  // or INTERNAL, where the request was on a worker that died for the second time. It may be what kills them. Where it
  // was not the request, and is not tried again all the same, retries_ended().
  absl::Status Judge(const absl::Status& status, const PrefillRun::Failure& failure, FailoverStage stage);

  // The answer has a token more, from a decode worker, at `now` on any monotonic clock. What is lost from now on was of
  // use: a worker's death with all its streams is no fault that every attempt meets.
  void GotOn(absl::Time now);

  // Before the attempt that follows begins, and before it decodes, for news of deaths may have come meanwhile: OK, or
  // INTERNAL as Judge.
  absl::Status Reconsider() const { return JudgeDeaths(); }

  // The last failure was no fault of the request, and no others are tried here any more: elsewhere, or later, it may be
  // sent again.
  bool retries_ended() const { return retries_ended_; }

  // The attempt that followed has its workers.
  void WentOn();
  // How often it did.
  int count() const { return count_; }

  // What the client is told where the attempt that was to follow came to `status` before it had workers.
  absl::Status AfterAll(const absl::Status& status) const;

 private:
  // The workers that are known to have died with the request.
  std::vector<std::shared_ptr<const LiveWorker>> Dead() const;
  void ForgetThoseBack();
  absl::Status JudgeDeaths() const;

  const std::string request_id_;
  const Fleet& fleet_;
  RetryBudget& budget_;
  RouterMetrics& metrics_;
  std::vector<std::shared_ptr<const LiveWorker>> lost_;      // with a part of it, or its lease
  std::vector<std::shared_ptr<const LiveWorker>> suspects_;  // of all attempts; not known to be lost when those failed
  int failures_ = 0;
  int count_ = 0;
  int in_a_row_ = 0;  // without a token more
  bool retries_ended_ = false;
  bool got_on_ = false;                      // since the last attempt that failed
  std::optional<absl::Time> goes_on_since_;  // with others, by tokens that came
  absl::Status last_;                        // of the last attempt that was planned anew
  FailoverCause cause_ = FailoverCause::kWorkerLost;
  FailoverStage stage_ = FailoverStage::kPrefill;
};

}  // namespace runahead
