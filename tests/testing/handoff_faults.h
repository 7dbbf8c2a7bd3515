// What tests do to hand-off: corrupt what is sent, hold back what is answered. Decorators of what the product is made
// of.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/mutex.h"
#include "worker/handoff/slice_sender.h"
#include "worker/link/message_engine.h"

namespace runahead::testing {

// Thread-safe; outlives the decorators that were given it, but not what they decorate.
class HandoffFaults {
 public:
  // The next `count` sends carry a flipped bit.
  void CorruptSends(int count) RUNAHEAD_EXCLUDES(mu_);
  // Answers wait from now on, until ReleaseVerdicts: the hand-off is blocked.
  void HoldVerdicts() RUNAHEAD_EXCLUDES(mu_);
  void ReleaseVerdicts() RUNAHEAD_EXCLUDES(mu_);
  // Blocks until so many answers wait.
  void AwaitHeld(size_t count) RUNAHEAD_EXCLUDES(mu_);

  // The bytes to send in place of `bytes`, which are memory of the host, under the sum of these.
  Outbound Tamper(Outbound bytes) RUNAHEAD_EXCLUDES(mu_);
  // Answers now, or when released.
  void Answer(std::function<void()> answer) RUNAHEAD_EXCLUDES(mu_);

 private:
  // Whether bytes that go now are to be corrupt.
  bool TakeCorrupt() RUNAHEAD_EXCLUDES(mu_);

  Mutex mu_;
  CondVar held_;
  int corrupt_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  bool holding_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> answers_ RUNAHEAD_GUARDED_BY(mu_);
};

// A sender's transport: what goes over it is tampered with by `sending`; of a transport within one process, `receiving`
// holds what is answered, too. Null: nobody does.
std::shared_ptr<SliceTransport> WithFaults(std::shared_ptr<SliceTransport> transport, HandoffFaults* sending,
                                           HandoffFaults* receiving = nullptr);

// A receiver's engine, whose verdicts `faults` holds.
std::unique_ptr<MessageEngine> HoldingVerdicts(std::unique_ptr<MessageEngine> engine, HandoffFaults& faults);

}  // namespace runahead::testing
