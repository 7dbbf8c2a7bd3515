#include "server/base/drain_gate.h"

#include "server/base/clock.h"

namespace runahead {

DrainGate::Pass& DrainGate::Pass::operator=(Pass&& other) noexcept {
  if (this == &other) return *this;
  Release();
  gate_ = other.gate_;
  other.gate_ = nullptr;
  return *this;
}

void DrainGate::Pass::Release() {
  if (gate_ != nullptr) gate_->Leave();
  gate_ = nullptr;
}

absl::StatusOr<DrainGate::Pass> DrainGate::Enter() {
  MutexLock lock(mu_);
  if (closed_) return absl::UnavailableError("this process is draining before it stops; try again elsewhere");
  ++inside_;
  return Pass(this);
}

void DrainGate::Close() {
  MutexLock lock(mu_);
  closed_ = true;
}

bool DrainGate::closed() const {
  MutexLock lock(mu_);
  return closed_;
}

int DrainGate::inside() const {
  MutexLock lock(mu_);
  return inside_;
}

bool DrainGate::WaitEmpty(absl::Duration timeout) {
  const absl::Time until = RealClock().Now() + timeout;
  MutexLock lock(mu_);
  while (inside_ > 0) {
    if (RealClock().Now() >= until) return false;
    RealClock().WaitUntil(mu_, left_, until);
  }
  return true;
}

void DrainGate::Leave() {
  MutexLock lock(mu_);
  --inside_;
  left_.NotifyAll();  // under the lock: who waits may destroy the gate as soon as it can take it
}

}  // namespace runahead
