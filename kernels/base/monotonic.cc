#include "kernels/base/monotonic.h"

#include <chrono>

#include "absl/time/clock.h"

namespace runahead {

absl::Time MonotonicNow() {
  static const absl::Time start = absl::Now();
  static const std::chrono::steady_clock::time_point start_monotonic = std::chrono::steady_clock::now();
  return start + absl::FromChrono(std::chrono::steady_clock::now() - start_monotonic);
}

}  // namespace runahead
