#include "server/router/failover.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/mutex.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// Reports come within some milliseconds; the first time they are waited for.
constexpr absl::Duration kNewsOfPath = absl::Milliseconds(50);

FailoverCause CauseOf(JobFault fault) {
  if (fault == JobFault::kPath) return FailoverCause::kPathBroken;
  return fault == JobFault::kFailed ? FailoverCause::kWorkerFailed : FailoverCause::kWorkerLost;
}

}  // namespace

absl::Status Failover::Judge(const absl::Status& status, const PrefillRun::Failure& failure) {
  if (failure.fault == JobFault::kNone || failure.fault == JobFault::kRequest) return status;
  if (failure.fault == JobFault::kLost && failure.worker != nullptr) lost_.push_back(failure.worker);
  if (Deaths() >= 2) {
    const std::string names = absl::StrJoin(lost_, " and ", [](std::string* out, const auto& worker) {
      absl::StrAppend(out, worker->capabilities.name());
    });
    LogError("session", "request ", request_id_, " was being computed when ", names,
             " died: it is not tried again, for it may be the cause");
    return absl::InternalError(absl::StrCat("the request was being computed when ", names,
                                            " died: it is not tried again, for it may be the cause"));
  }
  failures_ += failure.fault == JobFault::kFailed;
  if (failures_ > kMostFailures || count_ >= kMostRetries) return status;
  if (!budget_.Take()) {
    return absl::Status(
        status.code(), absl::StrCat(status.message(), " (not tried again here: the router's retry budget is used up)"));
  }
  cause_ = CauseOf(failure.fault);
  last_ = status;
  return absl::OkStatus();
}

absl::Status Failover::AwaitNews(CancelToken& cancel, Clock& clock, absl::Time until) const {
  if (cause_ != FailoverCause::kPathBroken) return absl::OkStatus();
  const absl::Time over = std::min(until, clock.Now() + kNewsOfPath * (1 << (2 * count_)));
  Mutex mu;
  CondVar changed;
  const auto subscription = cancel.OnCancel([&] {
    MutexLock lock(mu);
    changed.NotifyAll();
  });
  MutexLock lock(mu);
  while (!cancel.cancelled() && clock.Now() < over) clock.WaitUntil(mu, changed, over);
  return cancel.status();
}

void Failover::WentOn() {
  if (last_.ok()) return;
  ++count_;
  metrics_.CountFailover(cause_);
  LogInfo("session", "request ", request_id_, " goes on with other workers: ", last_.message());
  last_ = absl::OkStatus();
}

absl::Status Failover::AfterAll(const absl::Status& status) const {
  if (status.ok() || last_.ok() || absl::IsCancelled(status)) return status;
  return absl::Status(status.code(), absl::StrCat(last_.message(), "; then, planned anew: ", status.message()));
}

int Failover::Deaths() const {
  return static_cast<int>(
      std::count_if(lost_.begin(), lost_.end(), [&](const auto& worker) { return !fleet_.LivesOn(*worker); }));
}

}  // namespace runahead
