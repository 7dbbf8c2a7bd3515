// One request's end from outside: the client is gone, its deadline has passed, a worker that it needs has died.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Thread-safe. The first reason wins.
class CancelToken {
 public:
  // While it lives, the hook it stands for may be called; once it is destroyed, the hook neither runs nor will.
  class [[nodiscard]] Subscription {
   public:
    Subscription(CancelToken* token, int64_t id) : token_(token), id_(id) {}
    ~Subscription() { token_->Unsubscribe(id_); }
    Subscription(const Subscription&) = delete;
    Subscription& operator=(const Subscription&) = delete;

   private:
    CancelToken* token_;
    int64_t id_;
  };

  // `why` is not OK. Calls the hooks on this thread.
  void Cancel(absl::Status why) RUNAHEAD_EXCLUDES(state_mu_, hooks_mu_);

  // OK until cancelled. May be called under any lock.
  absl::Status status() const RUNAHEAD_EXCLUDES(state_mu_);
  bool cancelled() const { return !status().ok(); }

  // `hook` is called once when the token is cancelled, at once if it is already. It must not block nor use the token's
  // subscriptions. The token must outlive the subscription.
  Subscription OnCancel(std::function<void()> hook) RUNAHEAD_EXCLUDES(state_mu_, hooks_mu_);

 private:
  void Unsubscribe(int64_t id) RUNAHEAD_EXCLUDES(hooks_mu_);

  // Two locks, so that status() can be read under locks which hooks take. hooks_mu_ is held while hooks run.
  Mutex hooks_mu_;
  mutable Mutex state_mu_;
  absl::Status status_ RUNAHEAD_GUARDED_BY(state_mu_);
  std::map<int64_t, std::function<void()>> hooks_ RUNAHEAD_GUARDED_BY(hooks_mu_);
  int64_t next_id_ RUNAHEAD_GUARDED_BY(hooks_mu_) = 0;
};

}  // namespace runahead
