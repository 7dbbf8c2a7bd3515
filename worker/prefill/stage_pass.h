// What a stage keeps of its jobs and passes. For its own files.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "scheduler/placement/overtaking.h"
#include "worker/prefill/stage.h"

namespace runahead {

// A job from Start to Done. All but `job`, `started` and `stop` is the stage's thread's until the job has left its pass
// or the pass is over.
struct PrefillStage::Running {
  explicit Running(PrefillJob to_run) : job(std::move(to_run)) {}

  const PrefillJob job;
  std::shared_ptr<const WantedGrammar> grammar;  // of a tail whose job has a structure; else null
  const absl::Time started = MonotonicNow();
  const JobStop stop;
  Allowance allowance = Allowance::Left(job.allowance_s);  // of those that overtake it
  size_t place = 0;                                        // among the jobs that its pass began with
  Memory memory;               // once its pass has begun; it is free when all who share it have given it back
  absl::Status computed;       // not OK: why it did not see its pass's end, or has no token
  std::vector<Event> pending;  // what it has on links and hand-off when it leaves the pass
  JobTimes times;

  WaitingPrompt AsWaiting(bool may_overtake) const { return {job.expected_s, allowance, may_overtake}; }
};

// One run through the layers: of a job, or of short ones together. The stage's thread's.
struct PrefillStage::Pass {
  explicit Pass(std::shared_ptr<Running> first) { jobs.push_back(std::move(first)); }

  absl::Time deadline() const {
    absl::Time first = absl::InfiniteFuture();
    for (const auto& running : jobs) first = std::min(first, running->job.deadline);
    return first;
  }
  int64_t tokens() const {
    int64_t tokens = 0;
    for (const auto& running : jobs) tokens += running->job.tokens();
    return tokens;
  }
  bool half_done() const { return loop != nullptr; }
  // What one may take at most that overtakes all of its jobs.
  double BearsOthersFor() const {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& running : jobs) least = std::min(least, BearsS(running->job.expected_s, running->allowance));
    return least;
  }
  void Overtaken(const Running& by) {
    for (const auto& running : jobs) running->allowance.Take(by.job.expected_s);
  }
  // What it has to compute still, by the longest of its jobs; no end where it waits for others meanwhile.
  double KeepsDeviceFor() const {
    double expected_s = 0;
    for (const auto& running : jobs) expected_s = std::max(expected_s, running->job.expected_s);
    if (!half_done()) return expected_s;
    const bool waits = wait.what != PrefillWait::For::kDevice && !wait.event.fired();
    return waits ? std::numeric_limits<double>::infinity() : expected_s * loop->left();
  }

  std::vector<std::shared_ptr<Running>> jobs;  // in the order of their Starts; those that left are not here
  bool interleaved = false;
  Memory memory;                      // null while it waits for some
  std::unique_ptr<PrefillLoop> loop;  // null before it began
  int64_t rows = 0;                   // that it began with
  absl::Time begun;
  PrefillWait wait;          // what comes next needs this to be over
  absl::Time waiting_from;   // as far as it is not accounted for yet
  double interleaved_s = 0;  // that others took while it was half done
  bool drawn = false;        // first tokens are told, of those that have any
  int64_t scored = 0;        // rows whose scores are told
  int64_t scoring = 0;       // rows behind them whose scores are enqueued
  bool over = false;
};

}  // namespace runahead
