// Until when this process has heard what others said to it.
#pragma once

#include "absl/time/time.h"

namespace runahead {

// A process that is short of cores, or flooded, is behind with reading: what its peers said lies in its sockets. So
// before it takes somebody's silence for real, it asks how far it has come. Thread-safe.
class Hearing {
 public:
  virtual ~Hearing() = default;

  // Whatever had reached this process by then has been heard, as far as is known at `now`; never later than `now`. Each
  // call has it looked at anew, so that a later one knows more. Must not block.
  virtual absl::Time Until(absl::Time now) = 0;
};

// A process that is never behind: for tests, and for what does not ask.
class HearsAll final : public Hearing {
 public:
  absl::Time Until(absl::Time now) override { return now; }
};

// Lives for the whole process.
inline Hearing& AlwaysHears() {
  static HearsAll& all = *new HearsAll;
  return all;
}

}  // namespace runahead
