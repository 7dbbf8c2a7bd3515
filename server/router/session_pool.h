// The threads that requests run on: they block, so there is one for each request that runs.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"

namespace runahead {

// Thread-safe.
class SessionPool {
 public:
  // Threads are started when they are first needed, `max_threads` at most.
  explicit SessionPool(int max_threads) : max_threads_(max_threads) {}
  ~SessionPool();  // runs what was submitted, then ends the threads
  SessionPool(const SessionPool&) = delete;
  SessionPool& operator=(const SessionPool&) = delete;

  // Runs `work` on a free thread, at once unless all are busy; in the order submitted.
  void Submit(std::function<void()> work) RUNAHEAD_EXCLUDES(mu_);

  // Whether what is submitted now would have to wait.
  bool busy() const RUNAHEAD_EXCLUDES(mu_);

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_);

  const int max_threads_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ RUNAHEAD_GUARDED_BY(mu_);
  int unfinished_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // submitted and not at its end
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

}  // namespace runahead
