// How many calls wait for their messages to be read, for tests that wait for so many.
#pragma once

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "server/rpc/arrivals.h"
#include "tests/testing/await_change.h"

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
    ChangeWait wait(absl::StrCat(count, " calls wait"));
    while (waiting_ != count) {
      if (!wait.Next(mu_, changed_)) return;
    }
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
