// How a process is asked to stop, and to log more or less.
#pragma once

#include <csignal>
#include <thread>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Waits for SIGINT and SIGTERM on a thread of its own, so that no handler runs in the middle of anything. Make it
// first in main: it blocks these signals in its thread and in all that are started later. A second one ends the
// process at once with the usual code (128 + signal). SIGUSR1 makes the log one level more verbose, SIGUSR2 one level
// less (ChangeLogLevel). SIGPIPE is ignored from then on: a peer that went away is an error of the write. Thread-safe.
// One per process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // True once a signal came; false when `timeout` ran out before.
  bool Wait(absl::Duration timeout = absl::InfiniteDuration()) RUNAHEAD_EXCLUDES(mu_);

  // While it is on, nothing is under way that would have to end well (the process is still starting): a signal ends the
  // process at once, with exit code 0 as after any stop that was asked for.
  void EndAtOnce(bool on) RUNAHEAD_EXCLUDES(mu_);

 private:
  void Run();
  void Stop() RUNAHEAD_EXCLUDES(mu_);

  sigset_t before_;
  int signal_fd_;
  int end_fd_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool end_at_once_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
