#include "worker/model/penalty_counts.h"

#include "worker/model/sampler.h"

namespace runahead {

PenaltyCounts::PenaltyCounts(const SamplingOptions& options, absl::Span<const int32_t> prompt)
    : penalised_(HasPenalties(options)) {
  if (options.repetition_penalty == 1) return;
  for (const int32_t id : prompt) EntryOf(id);
}

void PenaltyCounts::AddOutput(int32_t id) {
  if (penalised_) ++EntryOf(id).in_output;
}

PenaltyCounts::Entry& PenaltyCounts::EntryOf(int32_t id) {
  const auto [found, is_new] = index_.try_emplace(id, entries_.size());
  if (is_new) entries_.push_back({id, 0});
  return entries_[found->second];
}

}  // namespace runahead
