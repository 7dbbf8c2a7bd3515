// When a stream of the CPU's device passed a point.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/time_mark.h"

namespace runahead {

class CpuTimeMark final : public TimeMark {
 public:
  // On the stream's thread.
  void Pass() { passed_ns_.store(absl::ToUnixNanos(MonotonicNow()), std::memory_order_release); }
  std::optional<absl::Time> time() const override {
    const int64_t ns = passed_ns_.load(std::memory_order_acquire);
    if (ns == kNotYet) return std::nullopt;
    return absl::FromUnixNanos(ns);
  }

 private:
  static constexpr int64_t kNotYet = -1;
  std::atomic<int64_t> passed_ns_{kNotYet};
};

}  // namespace runahead
