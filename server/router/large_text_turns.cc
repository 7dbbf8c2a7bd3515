#include "server/router/large_text_turns.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Smaller texts take no turn: even one in every session takes no more memory than a few large ones.
constexpr size_t kSmallBytes = size_t{64} << 10;

}  // namespace

LargeTextTurns::Turn::Turn(Turn&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)) {}

LargeTextTurns::Turn::~Turn() {
  if (turns_ == nullptr) return;
  MutexLock lock(turns_->mu_);
  turns_->taken_ = false;
  turns_->changed_.NotifyAll();
}

absl::StatusOr<LargeTextTurns::Turn> LargeTextTurns::Await(size_t bytes, CancelToken& cancel) {
  if (bytes <= kSmallBytes) return Turn(nullptr);
  const CancelToken::Subscription wake = cancel.OnCancel([this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  MutexLock lock(mu_);
  while (true) {
    RUNAHEAD_RETURN_IF_ERROR(cancel.status());
    if (!taken_) break;
    changed_.Wait(mu_);
  }
  taken_ = true;
  return Turn(this);
}

}  // namespace runahead
