#include "worker/x_demand.h"

#include "scheduler/recompute/kv_from.h"
#include "scheduler/recompute/x_gain.h"

namespace runahead {

void XDemand::SetCosts(const LaneCosts& costs, int64_t sequences, SplitRest rest) {
  MutexLock lock(mu_);
  costs_ = costs;
  sequences_ = sequences;
  if (rest != SplitRest::kMeasuring) recomputes_ = rest == SplitRest::kNone;
}

std::optional<int64_t> XDemand::KvFrom(int64_t prompt_tokens) {
  LaneCosts costs;
  int64_t sequences = 0;
  bool recomputes = fixed_l_.has_value();
  {
    MutexLock lock(mu_);
    costs = costs_;
    sequences = sequences_ + 1;
    recomputes = recomputes || recomputes_;
  }
  const bool gains = fixed_l_.has_value() || GainOfX(costs, sequences, prompt_tokens) >= kLeastGainOfX;
  {
    MutexLock lock(mu_);
    refused_ = gains || refused_ + 1 >= kAnyway ? 0 : refused_ + 1;
    if (refused_ > 0) return std::nullopt;
  }
  return gains && recomputes ? runahead::KvFrom(costs, fixed_l_, prompt_tokens) : 0;
}

double XDemand::LostWithoutX(int64_t prompt_tokens) const {
  LaneCosts costs;
  int64_t sequences = 0;
  {
    MutexLock lock(mu_);
    if (fixed_l_.has_value() || !recomputes_) return 0;
    costs = costs_;
    sequences = sequences_ + 1;
  }
  return runahead::LostWithoutX(costs, sequences, prompt_tokens);
}

}  // namespace runahead
