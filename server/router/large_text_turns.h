// Large texts are tokenized one after the other, and small ones only so many at once: what a text needs while it is
// tokenized is many times its size.
#pragma once

#include <cstddef>
#include <list>

#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"
#include "server/router/cancel_token.h"
#include "server/task/task.h"
#include "server/task/wake.h"

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

  // Waits while another large text has its turn, or, for a small one, while too many others have theirs. Fails with
  // what `cancel` was cancelled with.
  Task<absl::StatusOr<Turn>> Await(size_t bytes, CancelToken& cancel) RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Waiting {
    size_t bytes;
    bool has_turn = false;
    Wake wake = {};
  };

  bool Free(size_t bytes) const RUNAHEAD_REQUIRES(mu_);
  // Stands in the row, unless it has its turn at once.
  void Enter(Waiting& waiting) RUNAHEAD_EXCLUDES(mu_);
  // Whether it has; it leaves the row then, or when `cancel` is not OK.
  bool Look(Waiting& waiting, const absl::Status& cancel) RUNAHEAD_EXCLUDES(mu_);
  void End(size_t bytes) RUNAHEAD_EXCLUDES(mu_);
  void Give(Waiting& waiting) RUNAHEAD_REQUIRES(mu_);

  Mutex mu_;
  std::list<Waiting*> row_ RUNAHEAD_GUARDED_BY(mu_);  // those without a turn
  bool taken_ RUNAHEAD_GUARDED_BY(mu_) = false;       // by a large text
  size_t small_bytes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
