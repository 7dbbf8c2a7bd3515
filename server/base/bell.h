// Wakes a thread that looks at state of its own, or waits for any of several things. Who only has tasks to run takes a
// TaskThread; who sleeps in poll a CommandQueue (docs/threads.md).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "server/base/progress_meter.h"

namespace runahead {

// Who waits looks at all it waits for between rung() and Await, so that nothing that rings meanwhile is missed.
// Thread-safe. Callbacks of events share it, for they may outlive who waits.
class Bell {
 public:
  // `meter`, where given, hears that something is wanted of who waits.
  explicit Bell(std::shared_ptr<ProgressMeter> meter = nullptr) : meter_(std::move(meter)) {}

  void Ring() {
    if (meter_ != nullptr) meter_->Wanted();
    MutexLock lock(mu_);
    ++rung_;
    changed_.NotifyAll();
  }
  // How often it has rung.
  int64_t rung() const {
    MutexLock lock(mu_);
    return rung_;
  }
  // Until it has rung more than `seen` times, or MonotonicNow() is `until`.
  void Await(int64_t seen, absl::Time until) {
    MutexLock lock(mu_);
    while (rung_ == seen && MonotonicNow() < until) changed_.WaitFor(mu_, until - MonotonicNow());
  }

 private:
  const std::shared_ptr<ProgressMeter> meter_;
  mutable Mutex mu_;
  CondVar changed_;
  int64_t rung_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
