// Which jobs an edge has done with lately, so that a late call or message for one leaves no new state behind.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "worker/link/edge.h"

namespace runahead {

// Remembers the last kRemembered jobs. A worker has a handful unfinished, so what is forgotten is long over. Not
// thread-safe.
class ClosedJobs {
 public:
  static constexpr size_t kRemembered = 4096;

  void Add(JobId job, bool dropped) {
    if (!dropped_.emplace(job, dropped).second) return;
    order_.push_back(job);
    if (order_.size() <= kRemembered) return;
    dropped_.erase(order_.front());
    order_.pop_front();
  }
  // Nothing: not known to be closed. Else whether it was dropped.
  std::optional<bool> Find(JobId job) const {
    const auto found = dropped_.find(job);
    if (found == dropped_.end()) return std::nullopt;
    return found->second;
  }

 private:
  absl::flat_hash_map<JobId, bool> dropped_;
  std::deque<JobId> order_;
};

}  // namespace runahead
