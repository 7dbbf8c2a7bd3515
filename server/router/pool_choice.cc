#include "server/router/pool_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

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
    std::vector<std::pair<const PoolTerms*, int>> votes;  // by the first in the list that has these terms
    for (const auto& answer : answers_) {
      const PoolTerms& terms = answer.second;
      const auto same =
          std::find_if(votes.begin(), votes.end(), [&](const auto& vote) { return *vote.first == terms; });
      if (same == votes.end()) {
        votes.emplace_back(&terms, 1);
      } else {
        ++same->second;
      }
    }
    const auto most =
        std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const int voters = listed_ - static_cast<int>(refused_.size());
    if (most != votes.end() && (2 * most->second > voters || now >= choice_due())) chosen_ = *most->first;
  }
  return chosen_.has_value() ? &*chosen_ : nullptr;
}

}  // namespace runahead
