// What the engine's steps take, for those who ask from other threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace runahead {

// Took is called by one thread; Expect by any.
class StepTime {
 public:
  void Took(absl::Duration step) {
    const int64_t now = absl::ToInt64Nanoseconds(step), before = ns_.load(std::memory_order_relaxed);
    ns_.store(before == 0 ? now : before + (now - before) / kNewest, std::memory_order_relaxed);
  }
  // By the last steps; 0 before the first.
  absl::Duration Expect() const { return absl::Nanoseconds(ns_.load(std::memory_order_relaxed)); }

 private:
  static constexpr int64_t kNewest = 5;  // the newest step is a fifth of the estimate

  std::atomic<int64_t> ns_ = 0;
};

}  // namespace runahead
