#include "worker/model/penalty_counts.h"

#include "worker/model/sampling.h"

namespace runahead {

PenaltyCounts::PenaltyCounts(const SamplingOptions& options, absl::Span<const int32_t> prompt)
    : penalised_(HasPenalties(options)) {
  if (options.repetition_penalty == 1) return;
  for (const int32_t id : prompt) IndexOf(id);
}

void PenaltyCounts::AddOutput(int32_t id) {
  if (!penalised_) return;
  last_ = static_cast<int64_t>(IndexOf(id));
  ++entries_[last_].in_output;
}

int32_t PenaltyCounts::CountOf(int32_t id) const {
  const auto found = index_.find(id);
  return found == index_.end() ? 0 : 1 + entries_[found->second].in_output;
}

size_t PenaltyCounts::IndexOf(int32_t id) {
  const auto [found, is_new] = index_.try_emplace(id, entries_.size());
  if (is_new) entries_.push_back({id, 0});
  return found->second;
}

}  // namespace runahead
