// How many requests may be tried again, so that a fault which every attempt meets does not multiply the load.
#pragma once

#include <algorithm>

#include "kernels/base/mutex.h"
#include "server/router/router_metrics.h"

namespace runahead {

// Thread-safe. A bucket of tokens: a retry takes one, a request brings a tenth of one.
class RetryBudget {
 public:
  // So many at once, as when the worker dies that most of a queue's prompts were given to; it begins full.
  static constexpr double kMost = 32;
  static constexpr double kPerRequest = 0.1;

  // `metrics` must outlive it.
  explicit RetryBudget(RouterMetrics& metrics) : metrics_(metrics) {
    MutexLock lock(mu_);
    Set(kMost);
  }

  void CountRequest() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    Set(std::min(kMost, left_ + kPerRequest));
  }
  // Whether there was one to take.
  bool Take() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (left_ < 1) return false;
    Set(left_ - 1);
    return true;
  }

 private:
  void Set(double left) RUNAHEAD_REQUIRES(mu_) {
    left_ = left;
    metrics_.SetRetryBudget(left);
  }

  RouterMetrics& metrics_;
  Mutex mu_;
  double left_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
