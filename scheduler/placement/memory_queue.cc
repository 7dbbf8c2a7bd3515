#include "scheduler/placement/memory_queue.h"

#include <algorithm>

namespace runahead {

void MemoryQueue::Keep(int64_t request, int64_t tokens, absl::Span<const DecodeView> workers) {
  std::vector<DecodeView> views(workers.begin(), workers.end());
  AddKept(request, absl::MakeSpan(views));
  Kept& kept = kept_[request];
  kept.tokens = tokens;
  const auto could = [&](size_t i) { return views[i].ready && views[i].capacity_tokens >= tokens; };
  if (kept.worker && !could(*kept.worker)) kept.worker.reset();
  for (size_t i = 0; i < views.size(); ++i) {
    if (could(i) && (!kept.worker || views[i].room() > views[*kept.worker].room())) kept.worker = i;
  }
}

void MemoryQueue::Lost(size_t worker) {
  for (auto& [request, kept] : kept_) {
    if (kept.worker == worker) kept.worker.reset();
  }
}

void MemoryQueue::AddKept(int64_t request, absl::Span<DecodeView> workers) const {
  for (const auto& [other, kept] : kept_) {
    if (other >= request) break;
    if (kept.worker) workers[*kept.worker].kept_tokens += kept.tokens;
  }
}

bool MemoryQueue::First(int64_t request) const {
  const auto found = kept_.find(request);
  if (found == kept_.end() || !found->second.worker) return true;
  return std::none_of(kept_.begin(), found,
                      [&](const auto& older) { return older.second.worker == found->second.worker; });
}

std::vector<int64_t> MemoryQueue::WhoFits(absl::Span<const DecodeView> workers) const {
  std::vector<int64_t> room(workers.size());
  for (size_t i = 0; i < workers.size(); ++i) room[i] = workers[i].ready ? workers[i].room() : 0;
  std::vector<int64_t> fit;
  size_t most = std::max_element(room.begin(), room.end()) - room.begin();
  for (const auto& [request, kept] : kept_) {
    if (room.empty() || room[most] <= 0) break;
    std::optional<size_t> taken = kept.worker;  // its own worker keeps room for it, whether there is enough yet or not
    const bool fits_own = kept.worker && room[*kept.worker] >= kept.tokens;
    const bool fits_other = !fits_own && room[most] >= kept.tokens;
    if (fits_own || fits_other) fit.push_back(request);
    if (fits_other) taken = most;
    if (!taken) continue;
    room[*taken] -= kept.tokens;
    if (taken == most) most = std::max_element(room.begin(), room.end()) - room.begin();
  }
  return fit;
}

}  // namespace runahead
