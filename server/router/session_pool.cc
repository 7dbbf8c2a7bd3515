#include "server/router/session_pool.h"

#include <algorithm>
#include <utility>

namespace runahead {

SessionPool::~SessionPool() {
  while (true) {
    std::vector<std::thread> threads;
    {
      MutexLock lock(mu_);
      stop_ = true;
      changed_.NotifyAll();
      threads.swap(threads_);
    }
    if (threads.empty()) return;
    for (std::thread& thread : threads) thread.join();
  }
}

void SessionPool::Submit(CancelToken& cancel, Work work) {
  auto entry = std::make_unique<Entry>();
  entry->work = std::move(work);
  // Before the lock: a token that is cancelled already calls the hook here.
  Entry& known = *entry;
  entry->on_cancel.reset(new CancelToken::Subscription(cancel.OnCancel([this, &known] { GiveUp(known); })));
  MutexLock lock(mu_);
  (entry->given_up ? ready_ : waiting_).push_back(std::move(entry));
  Dispatch();
}

bool SessionPool::busy() const {
  MutexLock lock(mu_);
  return Full();
}

void SessionPool::GiveUp(Entry& entry) {
  MutexLock lock(mu_);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& e) { return e.get() == &entry; });
  if (found != waiting_.end()) {
    ready_.push_back(std::move(*found));
    waiting_.erase(found);
  } else if (entry.starting) {
    return;  // it has its turn, and will hear of the cancel by itself
  }
  entry.given_up = true;
  Dispatch();
}

void SessionPool::Dispatch() {
  while (!waiting_.empty() && !Full()) {
    waiting_.front()->starting = true;
    ++starting_;
    ++running_;
    ready_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  for (; free_ < ready_.size(); ++free_) threads_.emplace_back([this] { Run(); });
  if (stop_) {
    changed_.NotifyAll();  // some may end
  } else if (!ready_.empty()) {
    changed_.NotifyOne();
  }
}

void SessionPool::Settle(Entry& entry) {
  if (!std::exchange(entry.starting, false)) return;
  --starting_;
  Dispatch();
}

void SessionPool::Run() {
  mu_.Lock();
  while (true) {
    while (ready_.empty() && !(stop_ && waiting_.empty())) changed_.Wait(mu_);
    if (ready_.empty()) break;
    const std::unique_ptr<Entry> entry = std::move(ready_.front());
    ready_.pop_front();
    --free_;
    mu_.Unlock();
    RunOne(*entry);
    mu_.Lock();
    ++free_;
    if (!entry->given_up) --running_;
    Settle(*entry);
    Dispatch();
  }
  mu_.Unlock();
}

void SessionPool::RunOne(Entry& entry) {
  entry.on_cancel.reset();  // the token may go with the work
  entry.work([&] {
    MutexLock lock(mu_);
    Settle(entry);
  });
  entry.work = nullptr;  // what it holds goes before the thread counts as free
}

}  // namespace runahead
