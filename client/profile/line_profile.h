// What a model costs on a line of workers, found in the times of probes. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/profile/line_probe.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/cost_model.h"

namespace runahead {

struct TimedProbe {
  Probe probe;
  double seconds = 0;  // to the first token: the median of its runs
  double noise_s = 0;  // what this may be off by: twice the median deviation from it, so that outliers do not count
};

// A link delays the first token only where a layer's KV takes about as long as a layer's computing; a faster one is not
// seen, and taken as free. What is not seen has a bound.
struct LinkFinding {
  bool bandwidth_seen = false;
  bool latency_seen = false;
  double least_bytes_per_s = 0;  // where the bandwidth is not seen; 0: nothing can be said
  double most_latency_s = 0;     // where the latency is not seen
};

struct LineProfile {
  // Of singles and chains, in the order of `runs`: the model, what it makes of each, and what is wrong with it. Factors
  // that are 1 within the noise are 1, links alike within it are one.
  CostFit fit;
  std::vector<TimedRun> runs;
  std::vector<LinkFinding> links;  // [workers - 1]
  double chain_error = 0;          // median, without sign, of the chains' predictions; 0 without chains
};

// Above this median the predictions for chains are poor.
inline constexpr double kPoorChainError = 0.15;

// `start` gives layers and kv_bytes_per_token; the schedule is that of our workers, which skip what causality hides and
// receive two layers ahead. `probes` are those of ProbesOf for `workers`. Errors as FitCostModel's.
absl::StatusOr<LineProfile> ProfileLine(CostModel start, absl::Span<const TimedProbe> probes, int workers);

}  // namespace runahead
