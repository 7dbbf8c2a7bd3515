// What a meter reads once its thread does what a test waits for.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "server/base/progress_meter.h"

namespace runahead::testing {

// Nothing is told when a thread comes to rest, so the meter is read again and again. A test that waits in vain for a
// minute fails, and says for `what`.
template <typename Condition>
ProgressMeter::Reading AwaitReading(const ProgressMeter& meter, const std::string& what, const Condition& holds) {
  const absl::Time until = MonotonicNow() + absl::Minutes(1);
  Mutex mu;
  CondVar never;
  while (true) {
    ProgressMeter::Reading reading = meter.Read();
    if (holds(reading)) return reading;
    if (MonotonicNow() >= until) {
      ADD_FAILURE() << "waited in vain for " << what;
      return reading;
    }
    MutexLock lock(mu);
    never.WaitFor(mu, absl::Milliseconds(1));  // between two looks
  }
}

// Of a thread that has nothing to do but wait: that stays so until what it waits for happens.
inline ProgressMeter::Reading AwaitRest(const ProgressMeter& meter) {
  return AwaitReading(meter, "a thread that rests", [](const auto& reading) { return !reading.computing; });
}

}  // namespace runahead::testing
