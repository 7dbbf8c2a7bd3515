// Waits for what another thread or process makes true, where nothing tells of the change.
#pragma once

#include <string_view>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "tests/testing/patience.h"

namespace runahead::testing {

// Looks once each millisecond whether `condition()` holds, until it does or `patience` is over; it looks once more
// then, however long this thread had no core. The failure says what has not come:
//   ASSERT_TRUE(Await("both streams are open", [&] { return server.streams() == 2; }));
template <typename Condition>
[[nodiscard]] ::testing::AssertionResult Await(std::string_view what, Condition condition,
                                               absl::Duration patience = LongestWait()) {
  const absl::Time end = MonotonicNow() + patience;
  for (;;) {
    const bool last = MonotonicNow() >= end;
    if (condition()) return ::testing::AssertionSuccess();
    if (last) {
      return ::testing::AssertionFailure() << "waited " << absl::FormatDuration(patience) << " in vain until: " << what;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace runahead::testing
