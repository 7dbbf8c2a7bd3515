// What the clients of the door's benchmark ask for, and what came.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace runahead {

inline constexpr int kProbeTokens = 4;  // of requests whose first token is what counts

struct Wanted {
  int streams = 1;
  int tokens = kProbeTokens;
  int pace_ms = 0;
  bool until_first = false;  // it is enough that each has its first token; the streams stay open
};

struct Came {
  int64_t tokens = 0;
  absl::Duration took;
  std::vector<absl::Duration> ttfts;

  double rate() const { return static_cast<double>(tokens) / absl::ToDoubleSeconds(took); }
  void Add(const Came& more) {
    tokens += more.tokens;
    took += more.took;
    ttfts.insert(ttfts.end(), more.ttfts.begin(), more.ttfts.end());
  }
};

inline double Percentile(std::vector<absl::Duration> times, double share) {
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  return absl::ToDoubleMilliseconds(times[static_cast<size_t>(static_cast<double>(times.size() - 1) * share)]);
}

}  // namespace runahead
