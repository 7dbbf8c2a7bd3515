#include "worker/kv/lease_reaper.h"

#include <utility>

#include "kernels/base/thread_name.h"

namespace runahead {

LeaseReaper::LeaseReaper(KvStore& store, Clock& clock, std::function<void(int)> after_pass, absl::Duration period)
    : store_(store), clock_(clock), after_pass_(std::move(after_pass)), period_(period), thread_([this] { Run(); }) {}

LeaseReaper::~LeaseReaper() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  thread_.join();
}

void LeaseReaper::Run() {
  NameThread("lease expiry");
  while (true) {
    {
      MutexLock lock(mu_);
      const absl::Time next = clock_.Now() + period_;
      while (!stop_ && clock_.Now() < next) clock_.WaitUntil(mu_, stop_changed_, next);
      if (stop_) return;
    }
    const int expired = store_.ReapExpired();
    if (after_pass_) after_pass_(expired);
  }
}

}  // namespace runahead
