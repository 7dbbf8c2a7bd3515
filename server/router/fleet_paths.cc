// Paths between workers: which of them no plan may use.
#include <algorithm>
#include <utility>

#include "server/router/fleet.h"

namespace runahead {

void Fleet::SetBroken(BrokenPaths broken) {
  {
    MutexLock lock(mu_);
    if (broken == broken_) return;
    const auto includes = [](const auto& all, const auto& some) {
      return std::includes(all.begin(), all.end(), some.begin(), some.end());
    };
    const bool none_fresh = includes(broken_.edges, broken.edges) && includes(broken_.handoffs, broken.handoffs);
    if (!none_fresh) last_loss_ = clock_.Now();
    broken_ = std::move(broken);
    metrics_.SetBrokenPaths(static_cast<int64_t>(broken_.edges.size()), static_cast<int64_t>(broken_.handoffs.size()));
  }
  Tell({.returned = true, .decode = true});
}

void Fleet::OnDoubt(Doubter doubter) {
  MutexLock lock(mu_);
  doubter_ = std::move(doubter);
}

void Fleet::Doubt(const std::vector<WorkerPath>& paths) const {
  Doubter doubter;
  {
    MutexLock lock(mu_);
    doubter = doubter_;
  }
  if (doubter) doubter(paths);
}

// Whether the prefill worker can hand off to at least one of so many ready decode workers; true where none is ready.
bool Fleet::ReachesDecode(int prefill, int ready_decoders) const {
  if (broken_.handoffs.empty()) return true;
  int broken = 0;
  for (auto path = broken_.handoffs.lower_bound({prefill, 0}); path != broken_.handoffs.end() && path->first == prefill;
       ++path) {
    broken += workers_[path->second].decodes() && Ready(states_[path->second]);
  }
  return broken == 0 || broken < ready_decoders;
}

}  // namespace runahead
