// Who of the pool is ejected, as the router sees it: Ejection (scheduler/placement) by role, with its gauge and its
// log.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "scheduler/placement/ejection.h"
#include "server/base/clock.h"
#include "server/base/log_later.h"
#include "server/router/router_metrics.h"

namespace runahead {

// Thread-safe; never blocks. Workers are known by their index in the worker list.
class Ejections {
 public:
  // `metrics` and `clock` must outlive it.
  Ejections(size_t workers, RouterMetrics& metrics, Clock& clock);

  // The worker is there, or not any more. One that comes back as it was is still ejected; a new process (another
  // incarnation) begins anew.
  void Ready(int worker, const std::string& name, uint64_t incarnation, bool prefills, bool decodes)
      RUNAHEAD_EXCLUDES(mu_);
  void NotReady(int worker) RUNAHEAD_EXCLUDES(mu_);

  // What the worker did in this role with a request: OK, or a failure of its own. What it is not to be blamed for is
  // not said here: a cancel, a deadline, bad input, a neighbour, its own death (connections see to that).
  void Judge(WorkerRole role, int worker, const absl::Status& outcome) RUNAHEAD_EXCLUDES(mu_);

  // By worker: who is to get no work of this role now.
  std::vector<bool> Ejected(WorkerRole role) RUNAHEAD_EXCLUDES(mu_);

  // The gauge follows the time also while nobody asks, and the log says who is ejected: only here, for the others are
  // called under locks. Called again and again, without one.
  void Update() RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Role {
    explicit Role(size_t workers) : ejection(static_cast<int>(workers)), ready(workers), ejected(workers) {}
    Ejection ejection;
    std::vector<bool> ready;
    std::vector<bool> ejected;
  };
  void UpdateRole(WorkerRole role) RUNAHEAD_REQUIRES(mu_);

  RouterMetrics& metrics_;
  Clock& clock_;
  Mutex mu_;
  std::vector<Role> roles_ RUNAHEAD_GUARDED_BY(mu_);  // by WorkerRole
  std::vector<std::string> names_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<uint64_t> incarnations_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<std::string> last_failures_ RUNAHEAD_GUARDED_BY(mu_);
  LogLater untold_ RUNAHEAD_GUARDED_BY(mu_);  // until Update
};

}  // namespace runahead
