// Where the time to first token went: consecutive laps on one clock, so that the stages add up to the whole.
#pragma once

#include <algorithm>
#include <array>

#include "absl/time/time.h"
#include "server/router/router_metrics.h"

namespace runahead {

// For one thread at a time.
class TtftClock {
 public:
  explicit TtftClock(absl::Time start) : start_(start), last_(start) {}

  // All time since the lap before belongs to `stage`; a stage may have several laps.
  void Lap(TtftStage stage, absl::Time now) {
    spent_[static_cast<int>(stage)] += now - last_;
    last_ = now;
  }

  // The lap from Start to the first token's arrival: what the workers report counts, as far as it fits into the
  // lap; the rest, on the way there and back, belongs to kFirstToken.
  void LapPrefill(absl::Duration worker_queue, absl::Duration prefill, absl::Time now) {
    const absl::Duration whole = now - last_;
    const absl::Duration queue = std::clamp(worker_queue, absl::ZeroDuration(), whole);
    const absl::Duration compute = std::clamp(prefill, absl::ZeroDuration(), whole - queue);
    spent_[static_cast<int>(TtftStage::kWorkerQueue)] += queue;
    spent_[static_cast<int>(TtftStage::kPrefill)] += compute;
    spent_[static_cast<int>(TtftStage::kFirstToken)] += whole - queue - compute;
    last_ = now;
  }

  absl::Duration spent(TtftStage stage) const { return spent_[static_cast<int>(stage)]; }
  absl::Duration total() const { return last_ - start_; }
  absl::Time start() const { return start_; }
  absl::Time last() const { return last_; }  // the end of the last lap

 private:
  const absl::Time start_;
  absl::Time last_;
  std::array<absl::Duration, kTtftStages> spent_ = {};
};

}  // namespace runahead
