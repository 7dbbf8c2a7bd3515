// What a process may be asked for at most: where the ranges of options and of models' files end, and with them the
// buckets of histograms, so that nothing that is allowed lies beyond the last bound.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace runahead {

// The most patience that an option can give, and where the buckets of all latencies end. A request whose client sets no
// deadline may go on for longer.
inline constexpr absl::Duration kLongestLatency = absl::Hours(1);

inline constexpr int64_t kMostContext = int64_t{1} << 20;  // tokens
inline constexpr int64_t kMostBatch = 4096;                // sequences in one decode step

}  // namespace runahead
