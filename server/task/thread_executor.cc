#include "server/task/thread_executor.h"

#include <system_error>
#include <utility>

#include "kernels/base/thread_name.h"

namespace runahead {

ThreadExecutor::ThreadExecutor(const char* name, int threads) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, name] { Run(name); });
  } catch (const std::system_error&) {  // the system gives no more
    End();
    throw;
  }
}

ThreadExecutor::~ThreadExecutor() {
  End();
}

void ThreadExecutor::End() {
  {
    MutexLock lock(mu_);
    while (started_ > 0) none_left_.Wait(mu_);
    stop_ = true;
    ready_changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadExecutor::Post(std::coroutine_handle<> ready) {
  MutexLock lock(mu_);
  ready_.push_back(ready);
  if (idle_ > 0) ready_changed_.NotifyOne();
}

void ThreadExecutor::Start(Task<> task) {
  {
    MutexLock lock(mu_);
    ++started_;
  }
  RunToItsEnd(std::move(task)).Begin(*this);
}

Root ThreadExecutor::RunToItsEnd(Task<> task) {
  co_await std::move(task);
  Ended();
}

void ThreadExecutor::Ended() {
  MutexLock lock(mu_);
  if (--started_ == 0) none_left_.NotifyAll();
}

void ThreadExecutor::Run(const char* name) {
  NameThread(name);
  mu_.Lock();
  while (true) {
    ++idle_;
    while (ready_.empty() && !stop_) ready_changed_.Wait(mu_);
    --idle_;
    if (ready_.empty()) break;
    const std::coroutine_handle<> ready = ready_.front();
    ready_.pop_front();
    mu_.Unlock();
    ready.resume();
    mu_.Lock();
  }
  mu_.Unlock();
}

}  // namespace runahead
