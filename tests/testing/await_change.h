// Waits under a mutex for what another thread changes and tells of.
#pragma once

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "tests/testing/patience.h"

namespace runahead::testing {

// One wait, which has an end. The condition stands in the caller's loop, where it may read what the mutex guards:
//   MutexLock lock(mu_);
//   ChangeWait wait("a call has come");
//   while (calls_.empty()) {
//     if (!wait.Next(mu_, changed_)) return;
//   }
// Used by one thread.
class ChangeWait {
 public:
  explicit ChangeWait(std::string what, absl::Duration patience = LongestWait())
      : owned_(std::move(what)), what_(owned_.c_str()), patience_(patience), end_(MonotonicNow() + patience) {}
  // Of a literal it makes no copy: threads whose allocations are counted may wait, too.
  explicit ChangeWait(const char* what, absl::Duration patience = LongestWait())
      : what_(what), patience_(patience), end_(MonotonicNow() + patience) {}
  ChangeWait(const ChangeWait&) = delete;
  ChangeWait& operator=(const ChangeWait&) = delete;

  // Waits for a notification. False, and a failure of the test that says what has not come, when the patience was over
  // before the caller's last look.
  [[nodiscard]] bool Next(Mutex& mu, CondVar& changed) RUNAHEAD_REQUIRES(mu) {
    if (last_) {
      ADD_FAILURE() << "waited " << absl::FormatDuration(patience_) << " in vain until: " << what_;
      return false;
    }
    changed.WaitFor(mu, end_ - MonotonicNow());
    last_ = MonotonicNow() >= end_;
    return true;
  }

 private:
  const std::string owned_;
  const char* const what_;
  const absl::Duration patience_;
  const absl::Time end_;
  bool last_ = false;
};

}  // namespace runahead::testing
