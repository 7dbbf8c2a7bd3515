// The timer that ends leases nobody uses.
#pragma once

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "worker/kv/store.h"

namespace runahead {

inline constexpr absl::Duration kLeaseReapPeriod = absl::Seconds(1);

// Calls store.ReapExpired() once a period on its own thread, until it is destroyed. `store` and `clock` outlive it.
class LeaseReaper {
 public:
  // `after_pass`, where given, is called on that thread after every look, with how many leases expired.
  LeaseReaper(KvStore& store, Clock& clock, std::function<void(int)> after_pass = nullptr,
              absl::Duration period = kLeaseReapPeriod);
  ~LeaseReaper();
  LeaseReaper(const LeaseReaper&) = delete;
  LeaseReaper& operator=(const LeaseReaper&) = delete;

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_);

  KvStore& store_;
  Clock& clock_;
  const std::function<void(int)> after_pass_;
  const absl::Duration period_;
  Mutex mu_;
  CondVar stop_changed_;
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
