// The clock for waits and ages.
#pragma once

#include "absl/time/time.h"

namespace runahead {

// The time of day when it was first asked for, carried on by the machine's monotonic clock: never goes back, and
// setting the time of day neither ends nor prolongs anything that is measured with it. Any thread.
absl::Time MonotonicNow();

}  // namespace runahead
