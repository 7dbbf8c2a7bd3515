#include "server/router/prompt_scores.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {

PromptScoreOrder::PromptScoreOrder(absl::Span<const int64_t> parts) {
  const int64_t tokens = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  int64_t next = 1;
  for (const int64_t part : parts) {
    const int64_t end = std::min(next + part, tokens);
    members_.push_back({next, end});
    next = end;
  }
  PassFinished();
}

absl::Status PromptScoreOrder::Add(size_t member, v1::PromptScores scores) {
  Member& own = members_[member];
  const int64_t end = int64_t{scores.index()} + scores.logprobs_size();
  const bool lacks_itself = std::any_of(scores.logprobs().begin(), scores.logprobs().end(),
                                        [](const v1::TokenLogprobs& logprobs) { return logprobs.top().empty(); });
  if (scores.index() != own.next || end > own.end || scores.logprobs().empty() || lacks_itself) {
    return absl::InvalidArgumentError(absl::StrCat("log probabilities of tokens [", scores.index(), ", ", end,
                                                   ") where those from ", own.next, " to ", own.end, " are left"));
  }
  own.next = end;
  own.kept.push_back(std::move(scores));
  return absl::OkStatus();
}

std::optional<v1::PromptScores> PromptScoreOrder::Take() {
  if (!Ready()) return std::nullopt;
  std::deque<v1::PromptScores>& kept = members_[taking_].kept;
  v1::PromptScores scores = std::move(kept.front());
  kept.pop_front();
  PassFinished();
  return scores;
}

void PromptScoreOrder::PassFinished() {
  while (!done() && Complete(taking_) && members_[taking_].kept.empty()) ++taking_;
}

}  // namespace runahead
