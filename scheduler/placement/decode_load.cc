#include "scheduler/placement/decode_load.h"

#include <algorithm>
#include <utility>

namespace runahead {

void DecodeLoad::Taken(int64_t tokens, int64_t capacity, absl::Time now) {
  // It granted the lease, so at least that much was free.
  const int64_t known = reserved_tokens(capacity) - unseen_tokens_;
  unseen_tokens_ = std::max<int64_t>(0, std::min(unseen_tokens_, capacity - known - tokens));
  ++given_;
  given_tokens_ += tokens;
  if (!reports_) return;
  since_.push_back({tokens, now});
  since_tokens_ += tokens;
}

void DecodeLoad::Returned(int64_t tokens) {
  unseen_tokens_ -= unseen_tokens_ / std::max<int64_t>(1, given_);  // its share of what was rounded up
  --given_;
  given_tokens_ -= tokens;
  if (!reports_) return;
  ++returned_;
  returned_tokens_ += tokens;
}

void DecodeLoad::Reported(DecodeReport report, absl::Time asked, absl::Time now) {
  report_ = std::move(report);
  reported_at_ = now;
  reported_ = true;
  unseen_tokens_ = 0;
  returned_ = returned_tokens_ = 0;
  while (!since_.empty() && since_.front().taken <= asked) {
    since_tokens_ -= since_.front().tokens;
    since_.pop_front();
  }
}

void DecodeLoad::Refused(int64_t tokens, int64_t capacity) {
  const int64_t known = reserved_tokens(capacity) - unseen_tokens_;
  unseen_tokens_ = std::max(unseen_tokens_, capacity - known - tokens + 1);
}

int64_t DecodeLoad::leases() const {
  if (!reported_) return given_;
  return std::max(given_, report_.slots_used + static_cast<int64_t>(since_.size()) - returned_);
}

int64_t DecodeLoad::reserved_tokens(int64_t capacity) const {
  if (!reported_) return given_tokens_ + unseen_tokens_;
  const int64_t reported = std::max(report_.used_tokens, capacity - report_.growable_tokens);
  return std::max(given_tokens_, reported + since_tokens_ - returned_tokens_ + unseen_tokens_);
}

std::vector<double> DecodeLoad::Ends(absl::Time now) const {
  // Which ones were given back is not known: as if they were those that would have ended first.
  const size_t ended = std::min(static_cast<size_t>(returned_), report_.remaining.size());
  const double step_s = absl::ToDoubleSeconds(report_.step), passed_s = absl::ToDoubleSeconds(now - reported_at_);
  std::vector<double> ends;
  if (step_s <= 0) return ends;
  for (size_t i = ended; i < report_.remaining.size(); ++i) {
    ends.push_back(std::max(0.0, static_cast<double>(report_.remaining[i]) * step_s - passed_s));
  }
  return ends;
}

}  // namespace runahead
