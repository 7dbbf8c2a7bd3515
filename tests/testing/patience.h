// How long a test waits for what must come before it says that it did not. One variable of the environment scales all
// such waits: RUNAHEAD_TEST_PATIENCE=3 for a machine that is slow, or beside others.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"

namespace runahead::testing {

// The factor that `text` says, 1 where it is null; what is no positive number ends the process, as a typing error would
// otherwise change what a red test means.
inline double PatienceFactor(const char* text) {
  if (text == nullptr) return 1;
  double factor = 0;
  if (absl::SimpleAtod(text, &factor) && std::isfinite(factor) && factor > 0) return factor;
  std::fprintf(stderr, "RUNAHEAD_TEST_PATIENCE is '%s': it must be a positive number, such as 3\n", text);
  std::abort();
}

// `wait`, times the variable's factor as it was when first asked for. Only for waits that end as soon as what they wait
// for has come: not for a lease, an option of the product, or a time in which nothing may happen. Any thread.
inline absl::Duration Patience(absl::Duration wait) {
  static const double factor = PatienceFactor(std::getenv("RUNAHEAD_TEST_PATIENCE"));
  return wait * factor;
}

// For a wait that only a fault makes so long.
inline absl::Duration LongestWait() {
  return Patience(absl::Seconds(60));
}

}  // namespace runahead::testing
