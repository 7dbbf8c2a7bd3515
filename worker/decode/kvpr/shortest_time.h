// How long something takes on a machine where other things run, too.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"

namespace runahead {

// Seconds of the shortest of `runs` runs, above 0: what else runs while a worker starts only makes them longer, and a
// lane that seems slow is not used, so nothing would correct it. `run` returns when its work is done; its first error.
inline absl::StatusOr<double> ShortestTime(int runs, const std::function<absl::Status()>& run,
                                           const std::function<absl::Time()>& now = MonotonicNow) {
  double seconds = std::numeric_limits<double>::infinity();
  for (int i = 0; i < runs; ++i) {
    const absl::Time begin = now();
    RUNAHEAD_RETURN_IF_ERROR(run());
    seconds = std::min(seconds, absl::ToDoubleSeconds(now() - begin));
  }
  return std::max(seconds, 1e-9);
}

}  // namespace runahead
