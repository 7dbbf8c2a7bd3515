// A point of a stream whose time is taken where the stream runs: so that work is timed without the host in between.
#pragma once

#include <optional>

#include "absl/time/time.h"

namespace runahead {

// Thread-safe.
class TimeMark {
 public:
  virtual ~TimeMark() = default;
  // When all before it had run, on MonotonicNow's clock, to some microseconds (a device's clock may have another idea
  // of when, but not of how long); nothing while some of it runs.
  virtual std::optional<absl::Time> time() const = 0;
};

}  // namespace runahead
