// What a meter reads once its thread does what a test waits for: nothing tells when a thread comes to rest.
#pragma once

#include <string_view>

#include "gtest/gtest.h"
#include "server/base/progress_meter.h"
#include "tests/testing/await.h"

namespace runahead::testing {

template <typename Condition>
ProgressMeter::Reading AwaitReading(const ProgressMeter& meter, std::string_view what, const Condition& holds) {
  ProgressMeter::Reading reading;
  EXPECT_TRUE(Await(what, [&] { return holds(reading = meter.Read()); }));
  return reading;
}

// Of a thread that has nothing to do but wait: that stays so until what it waits for happens.
inline ProgressMeter::Reading AwaitRest(const ProgressMeter& meter) {
  return AwaitReading(meter, "the thread rests", [](const auto& reading) { return !reading.computing; });
}

}  // namespace runahead::testing
