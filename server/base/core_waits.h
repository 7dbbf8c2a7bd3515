// For how long this process's threads waited for a core that others had: that time says nothing of who hangs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace runahead {

// Threads want a core while they run or wait for one. The share of waiting in that is what counts: on a machine that
// gives them a tenth of what they want, nine tenths of the time are waited. A thread that sleeps, or that somebody froze, wants none. A wait is
// seen when it has ended. Where the system does not tell, nothing is waited. Thread-safe.
class CoreWaits {
 public:
  // `threads` is a folder with one folder a thread, in which `schedstat` says as the kernel does it: nanoseconds on a
  // core, nanoseconds of waiting for one. `clock` outlives this.
  explicit CoreWaits(Clock& clock = RealClock(), std::string threads = "/proc/self/task");

  // Looks at all threads: takes some 5 us for each. Called again and again; what is told is as fine as the looks are.
  void Look() RUNAHEAD_EXCLUDES(mu_);

  // How much of the last `span` was waited, as far as looks of the last 15 minutes tell.
  absl::Duration Within(absl::Duration span) const RUNAHEAD_EXCLUDES(mu_);

 private:
  // Of one thread since its start, or between two looks.
  struct Times {
    absl::Duration on_core, waited;
  };
  struct Sample {
    absl::Time at;
    absl::Duration waited;  // since the first look
  };

  absl::flat_hash_map<std::string, Times> ReadThreads() const;

  Clock& clock_;
  const std::string threads_;
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Times> last_ RUNAHEAD_GUARDED_BY(mu_);  // by the thread's id
  std::deque<Sample> samples_ RUNAHEAD_GUARDED_BY(mu_);                    // the oldest first
};

}  // namespace runahead
