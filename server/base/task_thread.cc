#include "server/base/task_thread.h"

#include <algorithm>
#include <utility>

#include "kernels/base/thread_name.h"

namespace runahead {

TaskThread::TaskThread(const char* name, std::shared_ptr<ProgressMeter> meter)
    : meter_(std::move(meter)), thread_([this, name] {
        NameThread(name);
        Run();
      }) {}

bool TaskThread::Post(std::function<void()> task) {
  MutexLock lock(mu_);
  if (!Add({std::move(task)})) return false;
  if (meter_ != nullptr) meter_->Wanted();
  return true;
}

bool TaskThread::PostWork(double work, std::function<void()> task) {
  MutexLock lock(mu_);
  if (!Add({std::move(task), /*is_unit=*/true})) return false;
  if (meter_ != nullptr) meter_->Begin(work);
  return true;
}

bool TaskThread::Add(Task task) {
  if (stopping_) return false;
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
  return true;
}

void TaskThread::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void TaskThread::Abandon() {
  std::deque<Task> abandoned;  // destroyed without the lock
  {
    MutexLock lock(mu_);
    stopping_ = true;
    abandoned.swap(tasks_);
    changed_.NotifyAll();
  }
  const auto units = std::count_if(abandoned.begin(), abandoned.end(), [](const Task& task) { return task.is_unit; });
  abandoned.clear();
  if (thread_.joinable()) thread_.join();
  if (meter_ == nullptr) return;
  meter_->Awake();  // nothing is wanted any more
  meter_->Resting();
  for (auto unit = units; unit > 0; --unit) meter_->End();
}

TaskThread::Task TaskThread::Next() {
  MutexLock lock(mu_);
  while (tasks_.empty() && !stopping_) changed_.Wait(mu_);
  if (tasks_.empty()) return {};
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void TaskThread::Run() {
  for (Task task = Next(); task.run; task = Next()) {
    if (meter_ != nullptr && !task.is_unit) meter_->Awake();
    task.run();
    task.run = nullptr;  // what it holds goes before the unit's end is told
    if (meter_ == nullptr) continue;
    if (task.is_unit) {
      meter_->End();
    } else {
      meter_->Resting();
    }
  }
}

}  // namespace runahead
