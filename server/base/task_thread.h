// One thread that runs tasks in order: what would take too long on the threads that move bytes, or must not happen
// there.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "kernels/base/mutex.h"
#include "server/base/progress_meter.h"

namespace runahead {

// Thread-safe.
class TaskThread {
 public:
  // `name` as NameThread takes it. `meter`, where given, is told what the thread gets done: of a task that it is
  // wanted, and when it is taken up; of a unit of work that it has begun, and ended.
  explicit TaskThread(const char* name, std::shared_ptr<ProgressMeter> meter = nullptr);
  ~TaskThread() { Stop(); }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // False after Stop or Abandon: then the task never runs.
  bool Post(std::function<void()> task) RUNAHEAD_EXCLUDES(mu_);
  // The same, and for the meter a unit of so much work (ProgressMeter::Begin), from now until the task has run.
  bool PostWork(double work, std::function<void()> task) RUNAHEAD_EXCLUDES(mu_);

  // Takes no more tasks, runs those that were posted, and ends the thread. Not on the thread itself; by the owner only.
  void Stop() RUNAHEAD_EXCLUDES(mu_);
  // The same, but tasks that have not begun never run.
  void Abandon() RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Task {
    std::function<void()> run;
    bool is_unit = false;
  };
  bool Add(Task task) RUNAHEAD_REQUIRES(mu_);
  // Nothing: the thread is to end.
  Task Next() RUNAHEAD_EXCLUDES(mu_);
  void Run();

  const std::shared_ptr<ProgressMeter> meter_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::deque<Task> tasks_ RUNAHEAD_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace runahead
