// Tasks on a thread that may block.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "kernels/base/mutex.h"
#include "server/task/root.h"
#include "server/task/task.h"

namespace runahead {

// The calling thread, until it has what it waits for.
class HereExecutor final : public Executor {
 public:
  void Post(std::coroutine_handle<> ready) override RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ready_.push_back(ready);
    changed_.NotifyAll();
  }

  // Runs what is ready until that has set `result`.
  template <typename T>
  void RunUntil(const std::optional<T>& result) RUNAHEAD_EXCLUDES(mu_) {
    while (!result) Next().resume();
  }

 private:
  std::coroutine_handle<> Next() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (ready_.empty()) changed_.Wait(mu_);
    const std::coroutine_handle<> ready = ready_.front();
    ready_.pop_front();
    return ready;
  }

  Mutex mu_;
  CondVar changed_;
  std::deque<std::coroutine_handle<>> ready_ RUNAHEAD_GUARDED_BY(mu_);
};

template <typename T>
Root KeepResult(Task<T> task, std::optional<T>& result) {
  result.emplace(co_await std::move(task));
}

// What `task` comes to. Blocks: not for threads that serve others.
template <typename T>
T RunHere(Task<T> task) {
  HereExecutor here;
  std::optional<T> result;
  KeepResult(std::move(task), result).Begin(here);
  here.RunUntil(result);
  return *std::move(result);
}

}  // namespace runahead
