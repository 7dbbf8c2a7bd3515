#include "server/router/large_text_turns.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Up to here a text is small.
constexpr size_t kSmallBytes = size_t{64} << 10;
// Of all small ones at once. With the largest text beside them they take what RequestMemory keeps for it.
constexpr size_t kAllSmallBytes = size_t{2} << 20;

}  // namespace

LargeTextTurns::Turn::Turn(Turn&& other) noexcept
    : turns_(std::exchange(other.turns_, nullptr)), bytes_(other.bytes_) {}

LargeTextTurns::Turn::~Turn() {
  if (turns_ == nullptr) return;
  MutexLock lock(turns_->mu_);
  if (bytes_ > kSmallBytes) {
    turns_->taken_ = false;
  } else {
    turns_->small_bytes_ -= bytes_;
  }
  turns_->changed_.NotifyAll();
}

bool LargeTextTurns::Free(size_t bytes) const {
  return bytes > kSmallBytes ? !taken_ : small_bytes_ + bytes <= kAllSmallBytes;
}

absl::StatusOr<LargeTextTurns::Turn> LargeTextTurns::Await(size_t bytes, CancelToken& cancel) {
  const CancelToken::Subscription wake = cancel.OnCancel([this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  MutexLock lock(mu_);
  while (true) {
    RUNAHEAD_RETURN_IF_ERROR(cancel.status());
    if (Free(bytes)) break;
    changed_.Wait(mu_);
  }
  if (bytes > kSmallBytes) {
    taken_ = true;
  } else {
    small_bytes_ += bytes;
  }
  return Turn(this, bytes);
}

}  // namespace runahead
