#include "scheduler/batching/step_plan.h"

#include <algorithm>

namespace runahead {

StepPlan PlanStep(absl::Span<const SequenceNumber> running, absl::Span<const SequenceNumber> waiting,
                  const BatchLimits& limits) {
  StepPlan plan;
  plan.rows.assign(running.begin(), running.end());
  const int64_t room = std::max<int64_t>(0, limits.max_sequences - static_cast<int64_t>(running.size()));
  plan.joined = std::min(waiting.size(), static_cast<size_t>(room));
  plan.rows.insert(plan.rows.end(), waiting.begin(), waiting.begin() + plan.joined);
  return plan;
}

}  // namespace runahead
