// What tests do to hand-off: corrupt what is sent, hold back what is answered. Production code has none of it (null).
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Thread-safe; outlives the senders and receivers that were given it.
class HandoffFaults {
 public:
  // The next `count` sends carry a flipped bit.
  void CorruptSends(int count) RUNAHEAD_EXCLUDES(mu_);
  // Answers wait from now on, until ReleaseVerdicts: the hand-off is blocked.
  void HoldVerdicts() RUNAHEAD_EXCLUDES(mu_);
  void ReleaseVerdicts() RUNAHEAD_EXCLUDES(mu_);
  // Blocks until so many answers wait.
  void AwaitHeld(size_t count) RUNAHEAD_EXCLUDES(mu_);

  // For senders: the bytes to send in place of `bytes`.
  ConstBufferRef Tamper(ConstBufferRef bytes) RUNAHEAD_EXCLUDES(mu_);
  // For receivers: answers now, or when released.
  void Answer(std::function<void()> answer) RUNAHEAD_EXCLUDES(mu_);

 private:
  Mutex mu_;
  CondVar held_;
  int corrupt_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool holding_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> answers_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
