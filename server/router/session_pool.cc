#include "server/router/session_pool.h"

#include <utility>

namespace runahead {

SessionPool::~SessionPool() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void SessionPool::Submit(std::function<void()> work) {
  MutexLock lock(mu_);
  work_.push_back(std::move(work));
  ++unfinished_;
  const int threads = static_cast<int>(threads_.size());
  if (unfinished_ > threads && threads < max_threads_) threads_.emplace_back([this] { Run(); });
  changed_.NotifyOne();
}

bool SessionPool::busy() const {
  MutexLock lock(mu_);
  return unfinished_ >= max_threads_;
}

void SessionPool::Run() {
  mu_.Lock();
  while (true) {
    while (work_.empty() && !stop_) changed_.Wait(mu_);
    if (work_.empty()) break;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    mu_.Unlock();
    work();
    work = nullptr;  // what it holds goes before the thread counts as free
    mu_.Lock();
    --unfinished_;
  }
  mu_.Unlock();
}

}  // namespace runahead
