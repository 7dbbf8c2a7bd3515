#include "worker/kv/lease_reaper.h"

#include <utility>

namespace runahead {

LeaseReaper::LeaseReaper(KvStore& store, Clock& clock, std::function<void(int)> reaped, absl::Duration period)
    : store_(store), clock_(clock), reaped_(std::move(reaped)), period_(period), thread_([this] { Run(); }) {}

LeaseReaper::~LeaseReaper() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  thread_.join();
}

void LeaseReaper::Run() {
  while (true) {
    {
      MutexLock lock(mu_);
      const absl::Time next = clock_.Now() + period_;
      while (!stop_ && clock_.Now() < next) clock_.WaitUntil(mu_, stop_changed_, next);
      if (stop_) return;
    }
    if (const int expired = store_.ReapExpired(); expired > 0 && reaped_) reaped_(expired);
  }
}

}  // namespace runahead
