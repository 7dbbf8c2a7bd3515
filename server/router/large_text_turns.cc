#include "server/router/large_text_turns.h"

#include <utility>

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
  if (turns_ != nullptr) turns_->End(bytes_);
}

bool LargeTextTurns::Free(size_t bytes) const {
  return bytes > kSmallBytes ? !taken_ : small_bytes_ + bytes <= kAllSmallBytes;
}

void LargeTextTurns::Give(Waiting& waiting) {
  waiting.has_turn = true;
  if (waiting.bytes > kSmallBytes) {
    taken_ = true;
  } else {
    small_bytes_ += waiting.bytes;
  }
}

void LargeTextTurns::End(size_t bytes) {
  MutexLock lock(mu_);
  if (bytes > kSmallBytes) {
    taken_ = false;
  } else {
    small_bytes_ -= bytes;
  }
  // Where a small one ended there is room for small ones alone, and the other way round.
  for (auto next = row_.begin(); next != row_.end();) {
    Waiting& waiting = **next;
    if ((waiting.bytes > kSmallBytes) != (bytes > kSmallBytes)) {
      ++next;
      continue;
    }
    if (!Free(waiting.bytes)) return;
    Give(waiting);
    next = row_.erase(next);
    waiting.wake.Notify();
  }
}

void LargeTextTurns::Enter(Waiting& waiting) {
  MutexLock lock(mu_);
  if (Free(waiting.bytes)) return Give(waiting);
  row_.push_back(&waiting);
}

bool LargeTextTurns::Look(Waiting& waiting, const absl::Status& cancel) {
  MutexLock lock(mu_);
  if (!waiting.has_turn && !cancel.ok()) row_.remove(&waiting);
  return waiting.has_turn;
}

Task<absl::StatusOr<LargeTextTurns::Turn>> LargeTextTurns::Await(size_t bytes, CancelToken& cancel) {
  Waiting waiting{bytes};
  const CancelToken::Subscription on_cancel = cancel.OnCancel([&waiting] { waiting.wake.Notify(); });
  if (const absl::Status status = cancel.status(); !status.ok()) co_return status;
  Enter(waiting);
  while (true) {
    const absl::Status status = cancel.status();
    if (Look(waiting, status)) co_return Turn(this, bytes);
    if (!status.ok()) co_return status;
    co_await waiting.wake.Wait();
  }
}

}  // namespace runahead
