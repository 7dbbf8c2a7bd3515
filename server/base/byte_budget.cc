#include "server/base/byte_budget.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

ByteBudget::Lease::Lease(Lease&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

ByteBudget::Lease& ByteBudget::Lease::operator=(Lease&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ByteBudget::Lease::~Lease() {
  if (budget_ != nullptr) budget_->Change(-bytes_);
}

bool ByteBudget::Lease::Resize(int64_t bytes) {
  if (budget_ != nullptr && !budget_->Change(bytes - bytes_)) return false;
  bytes_ = bytes;
  return true;
}

ByteBudget::Lease ByteBudget::Lease::Split(int64_t bytes) {
  RUNAHEAD_CHECK(bytes >= 0 && bytes <= bytes_);
  bytes_ -= bytes;
  return {budget_, bytes};
}

int64_t ByteBudget::taken() const {
  MutexLock lock(mu_);
  return taken_;
}

int64_t ByteBudget::refusals() const {
  MutexLock lock(mu_);
  return refusals_;
}

bool ByteBudget::Change(int64_t by) {
  MutexLock lock(mu_);
  if (by > 0 && by > bytes_ - taken_) {
    ++refusals_;
    return false;
  }
  taken_ += by;
  return true;
}

}  // namespace runahead
