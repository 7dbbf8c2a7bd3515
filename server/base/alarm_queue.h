// Alarms of many owners: one thread waits for the next of them and rings it.
#pragma once

#include <set>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace runahead {

// Thread-safe. Its times are MonotonicNow's.
class AlarmQueue {
 public:
  AlarmQueue();
  ~AlarmQueue();  // none is set any more
  AlarmQueue(const AlarmQueue&) = delete;
  AlarmQueue& operator=(const AlarmQueue&) = delete;

  // As Clock's.
  void Set(Alarm& alarm, absl::Time at) RUNAHEAD_EXCLUDES(mu_);
  void Unset(Alarm& alarm) RUNAHEAD_EXCLUDES(mu_);

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_);

  Mutex mu_;
  CondVar changed_;  // the first one has
  std::set<std::pair<absl::Time, Alarm*>> alarms_ RUNAHEAD_GUARDED_BY(mu_);
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
