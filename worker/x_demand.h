// Which prompts a decode worker wants X of, by what its steps have measured (docs/kvpr.md).
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/mutex.h"
#include "scheduler/recompute/split_controller.h"

namespace runahead {

// Thread-safe; no call blocks but for a lock that is held for moments.
class XDemand {
 public:
  // `costs`: as measured at start. `fixed_l`: what every step recomputes, whatever it gains; none: the solver's split.
  XDemand(const LaneCosts& costs, std::optional<int64_t> fixed_l) : fixed_l_(fixed_l), costs_(costs) {}

  // What lanes cost by now, how many sequences the last step had, and why it was not the solver's split.
  void SetCosts(const LaneCosts& costs, int64_t sequences, SplitRest rest) RUNAHEAD_EXCLUDES(mu_);

  // Of a prompt of `prompt_tokens` tokens, at least 1, that joins those of the last step: from where on its KV is
  // needed beside its X; none: its X is not wanted, for it would make steps less than kLeastGainOfX times as fast. X of
  // the first prompt, and of one in kAnyway, is wanted all the same: without any, nobody would see what recomputation
  // takes by now.
  // All KV is needed until the solver's split runs, and after it has stopped: what comes as X is recomputed in the first
  // step, whatever that takes, before a second token is there.
  std::optional<int64_t> KvFrom(int64_t prompt_tokens) RUNAHEAD_EXCLUDES(mu_);
  static constexpr int64_t kAnyway = 16;

  // By how many seconds a layer of each step takes longer where X of such a prompt, which joins those of the last step,
  // cannot come. 0 while the solver's split does not run, for nothing is recomputed then; and where every step's l is
  // given, which is to be taken whatever it gains.
  double LostWithoutX(int64_t prompt_tokens) const RUNAHEAD_EXCLUDES(mu_);

 private:
  const std::optional<int64_t> fixed_l_;
  mutable Mutex mu_;
  LaneCosts costs_ RUNAHEAD_GUARDED_BY(mu_);
  int64_t sequences_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool recomputes_ RUNAHEAD_GUARDED_BY(mu_) = false;  // the solver's split runs
  int64_t refused_ RUNAHEAD_GUARDED_BY(mu_) = kAnyway - 1;  // since X of a prompt was wanted last
};

}  // namespace runahead
