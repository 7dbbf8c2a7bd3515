// Times work on a stream: warm, in turn with what it is compared with, medians.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"

namespace runahead {

// Of one call of some work.
struct Timing {
  double median_s = 0;
  double spread_s = 0;  // the median of the distances from the median
  int64_t runs = 0;     // that were timed
  int64_t repeats = 0;  // calls in a run, one wait for all
};

// Of at least one value.
Timing TimingOf(std::vector<double> seconds, int64_t repeats);

// Enqueues on the stream, or runs to its end by itself.
using Work = std::function<absl::Status()>;

// Seconds of one call of each work. All are called until they are warm; then they run in turn, round by round, so that
// what drifts falls on all alike, for about `seconds` for each and at least five rounds. A run calls its work as often
// as makes the wait at its end small. The stream is empty before and after.
absl::StatusOr<std::vector<Timing>> TimeInTurn(Device& device, Stream& stream, double seconds,
                                               absl::Span<const Work> works);
absl::StatusOr<Timing> TimeAlone(Device& device, Stream& stream, double seconds, const Work& work);

// Since an instant of no meaning.
double SecondsNow();

}  // namespace runahead
