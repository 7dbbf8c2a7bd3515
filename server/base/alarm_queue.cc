#include "server/base/alarm_queue.h"

#include "kernels/base/monotonic.h"
#include "kernels/base/thread_name.h"

namespace runahead {

AlarmQueue::AlarmQueue() : thread_([this] { Run(); }) {}

AlarmQueue::~AlarmQueue() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void AlarmQueue::Set(Alarm& alarm, absl::Time at) {
  alarm.at_ = at;
  if (at == absl::InfiniteFuture()) return;
  MutexLock lock(mu_);
  alarms_.emplace(at, &alarm);
  if (alarms_.begin()->second == &alarm) changed_.NotifyAll();
}

void AlarmQueue::Unset(Alarm& alarm) {
  if (alarm.at_ == absl::InfiniteFuture()) return;
  MutexLock lock(mu_);
  alarms_.erase({alarm.at_, &alarm});
}

void AlarmQueue::Run() {
  NameThread("alarms");
  MutexLock lock(mu_);
  while (!stop_) {
    const absl::Duration left = alarms_.empty() ? absl::InfiniteDuration() : alarms_.begin()->first - MonotonicNow();
    if (left > absl::ZeroDuration()) {
      changed_.WaitFor(mu_, left);
      continue;
    }
    Alarm& due = *alarms_.begin()->second;
    alarms_.erase(alarms_.begin());
    due.Ring();
  }
}

}  // namespace runahead
