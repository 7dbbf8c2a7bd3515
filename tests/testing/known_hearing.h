// A process that has heard all, or only what came until a moment that the test names.
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/hearing.h"

namespace runahead::testing {

class KnownHearing final : public Hearing {
 public:
  // It has heard nothing that came later.
  void Stand(absl::Time at) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    at_ = at;
  }
  absl::Time Until(absl::Time now) override RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return std::min(at_, now);
  }

 private:
  Mutex mu_;
  absl::Time at_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfiniteFuture();
};

}  // namespace runahead::testing
