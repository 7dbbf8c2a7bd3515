#include "server/router/pool_choice.h"

#include <algorithm>
#include <utility>

namespace runahead {

void PoolChoice::Answered(int worker, PoolTerms terms, absl::Time now) {
  answers_[worker] = std::move(terms);
  refused_.erase(worker);
  first_answer_ = std::min(first_answer_, now);
}

void PoolChoice::Gone(int worker, absl::Time now) {
  answers_.erase(worker);
  const bool pool_left =
      std::any_of(answers_.begin(), answers_.end(), [this](const auto& answer) { return answer.second == chosen_; });
  if (chosen_.has_value() && !pool_left) {
    chosen_.reset();
    first_answer_ = now;  // of those that wait
  }
  if (answers_.empty()) first_answer_ = absl::InfiniteFuture();
}

const PoolTerms* PoolChoice::Choose(absl::Time now) {
  if (!chosen_.has_value()) {
    const PoolTerms* most = nullptr;
    int votes = 0;
    for (const auto& [worker, terms] : answers_) {
      const auto same = static_cast<int>(std::count_if(
          answers_.begin(), answers_.end(), [&terms](const auto& answer) { return answer.second == terms; }));
      if (same <= votes) continue;
      most = &terms;
      votes = same;
    }
    const int voters = listed_ - static_cast<int>(refused_.size());
    if (most != nullptr && (2 * votes > voters || now >= choice_due())) chosen_ = *most;
  }
  return chosen_.has_value() ? &*chosen_ : nullptr;
}

}  // namespace runahead
