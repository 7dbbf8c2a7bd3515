#include "server/router/ejections.h"

#include <algorithm>
#include <utility>


namespace runahead {

Ejections::Ejections(size_t workers, RouterMetrics& metrics, Clock& clock)
    : metrics_(metrics),
      clock_(clock),
      roles_(kWorkerRoles, Role(workers)),
      names_(workers),
      incarnations_(workers),
      last_failures_(workers) {}

void Ejections::Ready(int worker, const std::string& name, uint64_t incarnation, bool prefills, bool decodes) {
  MutexLock lock(mu_);
  names_[worker] = name;
  const bool other = std::exchange(incarnations_[worker], incarnation) != incarnation;
  for (Role& role : roles_) {
    if (other) role.ejection.Forget(worker);
  }
  roles_[static_cast<int>(WorkerRole::kPrefill)].ready[worker] = prefills;
  roles_[static_cast<int>(WorkerRole::kDecode)].ready[worker] = decodes;
  for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) UpdateRole(role);
}

void Ejections::NotReady(int worker) {
  MutexLock lock(mu_);
  for (Role& role : roles_) role.ready[worker] = false;
  for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) UpdateRole(role);
}

void Ejections::Judge(WorkerRole role, int worker, const absl::Status& outcome) {
  MutexLock lock(mu_);
  Ejection& ejection = roles_[static_cast<int>(role)].ejection;
  if (outcome.ok()) {
    ejection.Succeeded(worker);
    return;
  }
  last_failures_[worker] = outcome.ToString();
  ejection.Failed(worker, clock_.Now());
  UpdateRole(role);
}

std::vector<bool> Ejections::Ejected(WorkerRole role) {
  MutexLock lock(mu_);
  const std::vector<bool>& ejected = roles_[static_cast<int>(role)].ejected;
  if (std::find(ejected.begin(), ejected.end(), true) != ejected.end()) UpdateRole(role);  // the time of some may be up
  return ejected;
}

void Ejections::Update() {
  LogLater later;
  MutexLock lock(mu_);
  for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) UpdateRole(role);
  later.Take(untold_);
}

void Ejections::UpdateRole(WorkerRole which) {
  Role& role = roles_[static_cast<int>(which)];
  const absl::Time now = clock_.Now();
  std::vector<bool> ejected = role.ejection.Ejected(role.ready, now);
  const char* const work = which == WorkerRole::kPrefill ? "prefill" : "decode";
  for (size_t i = 0; i < ejected.size(); ++i) {
    if (ejected[i] && !role.ejected[i]) {
      untold_.Warning("ejection", names_[i], " gets no ", work, " work for ",
                      absl::FormatDuration(absl::Ceil(role.ejection.until(static_cast<int>(i)) - now, absl::Seconds(1))),
                      ", for it fails again and again: ", last_failures_[i]);
    } else if (!ejected[i] && role.ejected[i] && role.ready[i]) {
      untold_.Info("ejection", names_[i], " gets ", work, " work again");
    }
  }
  role.ejected = std::move(ejected);
  metrics_.SetEjected(which, std::count(role.ejected.begin(), role.ejected.end(), true));
}

}  // namespace runahead
