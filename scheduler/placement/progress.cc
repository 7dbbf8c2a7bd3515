#include "scheduler/placement/progress.h"

#include <algorithm>

namespace runahead {

absl::Duration PatienceWith(const ProgressView& progress) {
  absl::Duration least = kLeastPatience;
  if (progress.first) least = progress.usual > absl::ZeroDuration() ? kPatienceWithFirst : kPatienceWithUnknown;
  return std::max(least, kTimesUsual * progress.usual);
}

Liveness ProgressJudge::Judge(const ProgressView& progress, absl::Time now) {
  if (!progress.computing || progress.since - progress.waited <= PatienceWith(progress)) {
    suspected_ = absl::InfiniteFuture();
    return Liveness::kFine;
  }
  if (suspected_ == absl::InfiniteFuture() || progress.done != done_) {
    suspected_ = now;
    done_ = progress.done;
  }
  return now - suspected_ >= kSuspicion ? Liveness::kHung : Liveness::kSuspected;
}

}  // namespace runahead
