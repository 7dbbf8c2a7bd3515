// Which jobs an edge has done with lately, so that a late call or message for one leaves no new state behind.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/base/recent_set.h"
#include "worker/link/edge.h"

namespace runahead {

// Remembers the last kRemembered jobs. A worker has a handful unfinished, so what is forgotten is long over. Not
// thread-safe.
class ClosedJobs {
 public:
  static constexpr size_t kRemembered = 4096;

  void Add(JobId job, bool dropped) {
    closed_.Add(job);
    if (dropped) dropped_.Add(job);
  }
  // Nothing: not known to be closed. Else whether it was dropped.
  std::optional<bool> Find(JobId job) const {
    if (!closed_.contains(job)) return std::nullopt;
    return dropped_.contains(job);
  }

 private:
  RecentSet<JobId> closed_{kRemembered}, dropped_{kRemembered};
};

}  // namespace runahead
