#include "scheduler/batching/row_plan.h"

#include <algorithm>

namespace runahead {

int64_t RowsBeside(absl::Span<const PendingRows> pending, int64_t step_rows, int64_t longest) {
  int64_t prompts = 0;
  bool decodes = false;
  for (const PendingRows& of : pending) {
    prompts += of.prompt > 0 ? 1 : 0;
    decodes = decodes || of.decodes();
  }
  return decodes ? std::min(step_rows * std::max<int64_t>(prompts, 1), longest) : longest;
}

std::vector<int64_t> GrantRows(absl::Span<const PendingRows> pending, RowBudget budget) {
  std::vector<int64_t> granted;
  for (const PendingRows& of : pending) {
    if (of.decodes()) {
      granted.push_back(1);
      continue;
    }
    const bool of_prompt = of.prompt > 0;
    granted.push_back(of_prompt ? std::min(budget.all, of.prompt) : std::min({budget.all, budget.output, of.output}));
    budget.all -= granted.back();
    if (!of_prompt) budget.output -= granted.back();
  }
  return granted;
}

}  // namespace runahead
