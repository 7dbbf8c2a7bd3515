// Large texts are tokenized one after the other, and small ones only so many at once: what a text needs while it is
// tokenized is many times its size.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"
#include "server/router/cancel_token.h"

namespace runahead {

// Thread-safe.
class LargeTextTurns {
 public:
  // A text's turn; ends when destroyed, which must be before the turns' own end.
  class [[nodiscard]] Turn {
   public:
    Turn(LargeTextTurns* turns, size_t bytes) : turns_(turns), bytes_(bytes) {}
    Turn(Turn&& other) noexcept;
    ~Turn();
    Turn& operator=(Turn&&) = delete;

   private:
    LargeTextTurns* turns_;
    size_t bytes_;
  };

  // Blocks while another large text has its turn, or, for a small one, while too many others have theirs. Fails with
  // what `cancel` was cancelled with.
  absl::StatusOr<Turn> Await(size_t bytes, CancelToken& cancel) RUNAHEAD_EXCLUDES(mu_);

 private:
  bool Free(size_t bytes) const RUNAHEAD_REQUIRES(mu_);

  Mutex mu_;
  CondVar changed_;
  bool taken_ RUNAHEAD_GUARDED_BY(mu_) = false;  // by a large text
  size_t small_bytes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
