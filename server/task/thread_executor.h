// A few threads that coroutines run on.
#pragma once

#include <deque>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"
#include "server/task/executor.h"
#include "server/task/root.h"
#include "server/task/task.h"

namespace runahead {

// Thread-safe. What is ready runs in the order posted, each on the next free thread.
class ThreadExecutor final : public Executor {
 public:
  // `name` as NameThread takes it. Throws std::system_error where the system gives no thread, as std::thread does.
  ThreadExecutor(const char* name, int threads);
  ~ThreadExecutor();  // waits for the end of what was started
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  void Post(std::coroutine_handle<> ready) override RUNAHEAD_EXCLUDES(mu_);

  // Runs `task` here, soon; it belongs to itself from now on.
  void Start(Task<> task) RUNAHEAD_EXCLUDES(mu_);

 private:
  void End() RUNAHEAD_EXCLUDES(mu_);
  void Run(const char* name) RUNAHEAD_EXCLUDES(mu_);
  Root RunToItsEnd(Task<> task);
  void Ended() RUNAHEAD_EXCLUDES(mu_);

  Mutex mu_;
  CondVar ready_changed_, none_left_;
  std::deque<std::coroutine_handle<>> ready_ RUNAHEAD_GUARDED_BY(mu_);
  int idle_ RUNAHEAD_GUARDED_BY(mu_) = 0;     // threads that wait
  int started_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // and not ended
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace runahead
