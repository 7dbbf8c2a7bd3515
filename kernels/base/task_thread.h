// One thread that runs tasks in order: what would take too long on the threads that move bytes.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "kernels/base/mutex.h"

namespace runahead {

// Thread-safe. Destruction runs what was posted, then stops; it must not happen on the thread itself.
class TaskThread {
 public:
  TaskThread() : thread_([this] { Run(); }) {}
  ~TaskThread() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  void Post(std::function<void()> task) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    tasks_.push_back(std::move(task));
    changed_.NotifyAll();
  }

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_) {
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mu_);
        while (tasks_.empty() && !stopping_) changed_.Wait(mu_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  Mutex mu_;
  CondVar changed_;
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> tasks_ RUNAHEAD_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace runahead
