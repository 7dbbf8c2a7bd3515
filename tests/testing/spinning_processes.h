// A busy neighbour: processes of others that want all cores there are.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "kernels/base/status_macros.h"

namespace runahead::testing {

// So many processes that compute for as long as it lives. Make it before the process has threads that hold locks.
class SpinningProcesses {
 public:
  explicit SpinningProcesses(int count) {
    const pid_t self = getpid();
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      RUNAHEAD_CHECK(child >= 0);
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == self) {  // until it is killed, or nobody is there to do so
        }
        _exit(0);
      }
      children_.push_back(child);
    }
  }
  ~SpinningProcesses() {
    for (const pid_t child : children_) kill(child, SIGKILL);
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
  }
  SpinningProcesses(const SpinningProcesses&) = delete;
  SpinningProcesses& operator=(const SpinningProcesses&) = delete;

 private:
  std::vector<pid_t> children_;
};

}  // namespace runahead::testing
