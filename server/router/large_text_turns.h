// Large texts are tokenized one after the other: what a text needs while it is tokenized is many times its size.
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
    explicit Turn(LargeTextTurns* turns) : turns_(turns) {}  // null: a small text's, which is not counted
    Turn(Turn&& other) noexcept;
    ~Turn();
    Turn& operator=(Turn&&) = delete;

   private:
    LargeTextTurns* turns_;
  };

  // Blocks while another large text has its turn; small ones never wait. Fails with what `cancel` was cancelled with.
  absl::StatusOr<Turn> Await(size_t bytes, CancelToken& cancel) RUNAHEAD_EXCLUDES(mu_);

 private:
  Mutex mu_;
  CondVar changed_;
  bool taken_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

}  // namespace runahead
