// Ctrl-C for commands that wait for the service.
#pragma once

#include <csignal>
#include <functional>
#include <thread>

#include "kernels/base/mutex.h"

namespace runahead {

// Takes SIGINT and SIGTERM on a thread of its own. Make it before any other thread, so that all have them blocked.
// Thread-safe. One per process.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // While it lives, the first signal calls `cancel` (once, on another thread). A second one, and any without a scope,
  // ends the process with 128 + signal. One at a time.
  class Scope {
   public:
    Scope(Interrupt& interrupt, std::function<void()> cancel);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    int signal() const;  // the one that came; 0: none

   private:
    Interrupt& interrupt_;
  };

 private:
  void Run();
  void OnSignal(int signal) RUNAHEAD_EXCLUDES(mu_);

  sigset_t before_;
  int signal_fd_;
  int end_fd_;
  mutable Mutex mu_;
  std::function<void()> cancel_ RUNAHEAD_GUARDED_BY(mu_);  // set in a scope
  int signal_ RUNAHEAD_GUARDED_BY(mu_) = 0;                // came in this scope
  std::thread thread_;
};

}  // namespace runahead
