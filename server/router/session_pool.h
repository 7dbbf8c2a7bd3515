// The threads that requests run on: they block, so there is one for each request that runs.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"
#include "server/router/cancel_token.h"

namespace runahead {

// Thread-safe.
class SessionPool {
 public:
  // `settled` is what the work may call, once or more, when it has what others wait for: from then on it does not count
  // among those that are starting.
  using Work = std::function<void(const std::function<void()>& settled)>;

  // At most `max_starting` that have not settled, and `max_running` in all, run at once. Threads are started when they
  // are first needed, and kept.
  SessionPool(int max_starting, int max_running) : max_starting_(max_starting), max_running_(max_running) {}
  ~SessionPool();  // runs what was submitted, then ends the threads
  SessionPool(const SessionPool&) = delete;
  SessionPool& operator=(const SessionPool&) = delete;

  // Runs `work` on a thread, at once unless too many run; those that wait in the order submitted. When `cancel` is
  // cancelled meanwhile it does not wait any more, whatever runs: it is to say so and to end. `cancel` must live until
  // `work` is called.
  void Submit(CancelToken& cancel, Work work) RUNAHEAD_EXCLUDES(mu_);

  // Whether what is submitted now would have to wait.
  bool busy() const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Entry {
    Work work;
    bool given_up = false;  // cancelled before its turn: counts nowhere
    bool starting = false;
    std::unique_ptr<CancelToken::Subscription> on_cancel;
  };

  void GiveUp(Entry& entry) RUNAHEAD_EXCLUDES(mu_);
  void Dispatch() RUNAHEAD_REQUIRES(mu_);
  void Settle(Entry& entry) RUNAHEAD_REQUIRES(mu_);
  void Run() RUNAHEAD_EXCLUDES(mu_);
  void RunOne(Entry& entry) RUNAHEAD_EXCLUDES(mu_);
  bool Full() const RUNAHEAD_REQUIRES(mu_) { return starting_ >= max_starting_ || running_ >= max_running_; }

  const int max_starting_;
  const int max_running_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<std::unique_ptr<Entry>> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<Entry>> ready_ RUNAHEAD_GUARDED_BY(mu_);  // for the next thread
  std::vector<std::thread> threads_ RUNAHEAD_GUARDED_BY(mu_);
  size_t free_ RUNAHEAD_GUARDED_BY(mu_) = 0;   // threads that run nothing
  int starting_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // of those that run
  int running_ RUNAHEAD_GUARDED_BY(mu_) = 0;   // or are ready to
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

}  // namespace runahead
