// Log probabilities of a prompt: as its chain's members report them, put into the prompt's order.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runahead/v1/worker.pb.h"

namespace runahead {

// Of one run of a chain. Each member scores the tokens behind its own: those of its part but the prompt's first, and
// the first of the next part. For one thread at a time.
class PromptScoreOrder {
 public:
  // `parts`: tokens of each member, the head first.
  explicit PromptScoreOrder(absl::Span<const int64_t> parts);

  // What a member reports, in its order. INVALID_ARGUMENT where they are not those that follow of its own, or lack the
  // token itself: then they are left out.
  absl::Status Add(size_t member, v1::PromptScores scores);
  // Whether all of the member's have been added.
  bool Complete(size_t member) const { return members_[member].next == members_[member].end; }

  // The next in the prompt's order are there.
  bool Ready() const { return taking_ < members_.size() && !members_[taking_].kept.empty(); }
  // These. Nothing unless they are ready.
  std::optional<v1::PromptScores> Take();
  // All were taken.
  bool done() const { return taking_ == members_.size(); }

 private:
  struct Member {
    int64_t next, end;  // indices of tokens in the prompt: added next, and behind the last
    std::deque<v1::PromptScores> kept = {};
  };
  void PassFinished();

  std::vector<Member> members_;
  size_t taking_ = 0;  // the member whose scores are taken now
};

}  // namespace runahead
