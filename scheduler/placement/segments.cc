#include "scheduler/placement/segments.h"

#include <algorithm>

#include "scheduler/placement/chain_plan.h"

namespace runahead {

Segments::Segments(absl::Span<const WorkerView> line)
    : line_(line),
      not_ready_(line.size() + 1),
      broken_(line.size() + 1),
      busy_(line.size() + 1),
      jobs_(line.size() + 1) {
  for (size_t i = 0; i < line.size(); ++i) {
    not_ready_[i + 1] = not_ready_[i] + !line[i].ready;
    broken_[i + 1] = broken_[i] + !line[i].linked_to_next;
    busy_[i + 1] = busy_[i] + (line[i].unfinished_jobs >= kMaxUnfinishedJobs);
    jobs_[i + 1] = jobs_[i] + line[i].unfinished_jobs;
  }
}

std::vector<Obstacle> Segments::Obstacles(absl::Span<const int64_t> held) const {
  const size_t width = held.size(), count = line_.size() - width + 1;
  // A worker that can hold as much as the first `fits` members must may not stand behind these: it is in the way of the
  // segments that begin from width - 1 to `fits` places before it. Their number changes there by so much:
  std::vector<int> changes(count + 1);
  for (size_t i = 0; i < line_.size(); ++i) {
    if (line_[i].max_prefix_tokens >= held.back()) continue;
    const size_t fits = std::upper_bound(held.begin(), held.end(), line_[i].max_prefix_tokens) - held.begin();
    if (fits > i) continue;
    ++changes[i + 1 - std::min(i + 1, width)];
    --changes[std::min(count, i + 1 - fits)];
  }
  std::vector<Obstacle> obstacles(count);
  int too_small = 0;
  for (size_t first = 0; first < count; ++first) {
    too_small += changes[first];
    if (too_small > 0) {
      obstacles[first] = Obstacle::kMemory;
    } else if (Count(not_ready_, first, width) > 0 || Count(broken_, first, width - 1) > 0) {
      obstacles[first] = Obstacle::kNotReady;
    } else if (Busy(first, width)) {
      obstacles[first] = Obstacle::kBusy;
    }
  }
  return obstacles;
}

size_t Segments::LongestFree(int64_t held, bool idle) const {
  size_t longest = 0, length = 0;
  for (size_t i = 0; i < line_.size(); ++i) {
    const WorkerView& worker = line_[i];
    const int jobs = idle ? 1 : kMaxUnfinishedJobs;  // too many
    const bool free = worker.ready && worker.unfinished_jobs < jobs && worker.max_prefix_tokens >= held;
    const bool goes_on = i > 0 && line_[i - 1].linked_to_next;
    length = free ? 1 + (goes_on ? length : 0) : 0;
    longest = std::max(longest, length);
  }
  return longest;
}

}  // namespace runahead
