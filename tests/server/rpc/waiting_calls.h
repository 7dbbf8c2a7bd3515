// How many calls wait for their messages to be read, for tests that wait for so many.
#pragma once

#include <cstdint>

#include "kernels/base/mutex.h"
#include "server/rpc/arrivals.h"

namespace runahead::testing {

// Thread-safe. Outlives the Arrivals that it watches.
class WaitingCalls {
 public:
  ArrivalWatcher watcher() {
    ArrivalWatcher watcher;
    watcher.changed = [this](int, int waiting, int64_t) { Set(waiting); };
    return watcher;
  }
  void Await(int count) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (waiting_ != count) changed_.Wait(mu_);
  }

 private:
  void Set(int waiting) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    waiting_ = waiting;
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  int waiting_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead::testing
