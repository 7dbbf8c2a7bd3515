#include "server/router/cancel_token.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

void CancelToken::Cancel(absl::Status why) {
  RUNAHEAD_CHECK(!why.ok());
  {
    MutexLock lock(state_mu_);
    if (!status_.ok()) return;
    status_ = std::move(why);
  }
  MutexLock lock(hooks_mu_);
  for (const auto& [id, hook] : hooks_) hook();
  hooks_.clear();
}

absl::Status CancelToken::status() const {
  MutexLock lock(state_mu_);
  return status_;
}

CancelToken::Subscription CancelToken::OnCancel(std::function<void()> hook) {
  MutexLock lock(hooks_mu_);
  const int64_t id = next_id_++;
  if (cancelled()) {
    hook();
  } else {
    hooks_.emplace(id, std::move(hook));
  }
  return Subscription(this, id);
}

void CancelToken::Unsubscribe(int64_t id) {
  MutexLock lock(hooks_mu_);
  hooks_.erase(id);
}

}  // namespace runahead
