#include "server/router/failover.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

FailoverCause CauseOf(JobFault fault) {
  if (fault == JobFault::kPath) return FailoverCause::kPathBroken;
  return fault == JobFault::kFailed ? FailoverCause::kWorkerFailed : FailoverCause::kWorkerLost;
}

}  // namespace

PrefillRun::Failure DecodeFailure(const absl::Status& ended, const std::shared_ptr<const LiveWorker>& worker) {
  if (worker->lost->cancelled()) return {JobFault::kLost, worker};
  switch (ended.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kDeadlineExceeded:
      return {JobFault::kRequest, nullptr};
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kNotFound:  // the lease
      return {JobFault::kLost, nullptr, {worker}};
    default:
      return {JobFault::kFailed, worker};
  }
}

absl::Status Failover::Judge(const absl::Status& status, const PrefillRun::Failure& failure, FailoverStage stage) {
  if (failure.fault == JobFault::kNone || failure.fault == JobFault::kRequest) return status;
  if (failure.fault == JobFault::kLost && failure.worker != nullptr) lost_.push_back(failure.worker);
  suspects_.insert(suspects_.end(), failure.suspects.begin(), failure.suspects.end());
  goes_on_since_.reset();
  ForgetThoseBack();
  RUNAHEAD_RETURN_IF_ERROR(JudgeDeaths());
  failures_ += failure.fault == JobFault::kFailed;
  retries_ended_ = failures_ > kMostFailures || in_a_row_ >= kMostRetries;
  if (retries_ended_) return status;
  if (!std::exchange(got_on_, false) && !budget_.Take()) {
    retries_ended_ = true;
    return absl::Status(
        status.code(), absl::StrCat(status.message(), " (not tried again here: the router's retry budget is used up)"));
  }
  cause_ = CauseOf(failure.fault);
  stage_ = stage;
  last_ = status;
  return absl::OkStatus();
}

void Failover::GotOn(absl::Time now) {
  in_a_row_ = 0;
  got_on_ = true;
  if (lost_.empty() && suspects_.empty()) return;
  ForgetThoseBack();
  if (!goes_on_since_) goes_on_since_ = now;
  if (now - *goes_on_since_ < kNewsOfDeath) return;
  std::erase_if(suspects_, [](const auto& worker) { return !worker->lost->cancelled(); });
}

// Asked while they are there: later another process may be at the seat.
void Failover::ForgetThoseBack() {
  const auto back = [this](const auto& worker) { return fleet_.LivesOn(*worker); };
  std::erase_if(lost_, back);
  std::erase_if(suspects_, back);
}

void Failover::WentOn() {
  if (last_.ok()) return;
  ++count_;
  ++in_a_row_;
  metrics_.CountFailover(cause_, stage_);
  LogInfo("session", "request ", request_id_, " goes on with other workers: ", last_.message());
  last_ = absl::OkStatus();
}

absl::Status Failover::AfterAll(const absl::Status& status) const {
  if (status.ok() || last_.ok() || absl::IsCancelled(status)) return status;
  return absl::Status(status.code(), absl::StrCat(last_.message(), "; then, planned anew: ", status.message()));
}

absl::Status Failover::JudgeDeaths() const {
  const std::vector<std::shared_ptr<const LiveWorker>> dead = Dead();
  if (dead.size() < 2) return absl::OkStatus();
  const std::string names = absl::StrJoin(
      dead, " and ", [](std::string* out, const auto& worker) { absl::StrAppend(out, worker->capabilities.name()); });
  LogError("session", "request ", request_id_, " was being computed when ", names,
           " died: it is not tried again, for it may be the cause");
  return absl::InternalError(absl::StrCat("the request was being computed when ", names,
                                          " died: it is not tried again, for it may be the cause"));
}

std::vector<std::shared_ptr<const LiveWorker>> Failover::Dead() const {
  std::vector<std::shared_ptr<const LiveWorker>> dead;
  const auto add = [&](const std::shared_ptr<const LiveWorker>& worker) {
    if (*worker->let_go || fleet_.LivesOn(*worker) || absl::c_linear_search(dead, worker)) return;
    dead.push_back(worker);
  };
  for (const auto& worker : lost_) add(worker);
  for (const auto& worker : suspects_) {
    if (worker->lost->cancelled()) add(worker);
  }
  return dead;
}

}  // namespace runahead
