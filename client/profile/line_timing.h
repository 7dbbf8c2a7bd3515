// Times the probes of a line within a budget. Pure but for the clock and the timer that are handed in.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/measure/measured_search.h"
#include "client/profile/line_probe.h"
#include "client/profile/line_profile.h"
#include "server/base/clock.h"

namespace runahead {

struct LineTimingOptions {
  int workers = 1;
  std::vector<int64_t> tokens;  // lengths of prompts, rising, each at least 2 * workers; empty: up to `longest`
  int64_t longest = 0;          // that the line takes, at least 2 * workers
  int repeats = 5;              // runs of each probe at most; at least 1
  absl::Duration budget = absl::Seconds(120);
};

// A run begins: of `probe`, in round `round` from 1 (0: warming up), and about as much as `left` is still to come.
using TimingProgress = std::function<void(const Probe& probe, int round, absl::Duration left)>;

struct LineTimes {
  std::vector<TimedProbe> probes;
  int rounds = 0;  // in which every probe ran
  int64_t runs = 0;
  absl::Duration took;
};

// Every length runs once on the head to warm up and to see what it takes: lengths that are not given end where three
// rounds of all probes would not fit into the budget, though there are at least five, or where the workers' memory
// ends. Then all probes run in turn, again and again: what drifts falls on all alike. The first round runs to its end;
// later runs begin only if they are likely to end within the budget. Errors are the timer's.
absl::StatusOr<LineTimes> TimeLine(const LineTimingOptions& options, const ChainTimer& timer, const Clock& clock,
                                   const TimingProgress& progress);

}  // namespace runahead
