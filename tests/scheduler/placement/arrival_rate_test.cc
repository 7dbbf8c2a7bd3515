#include "scheduler/placement/arrival_rate.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

TEST(ArrivalRate, ComesCloseToASteadyRateAndForgets) {
  ArrivalRate rate;
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(rate.PerSecond(now), 0);
  for (int i = 0; i < 1000; ++i) {
    now += absl::Milliseconds(250);
    rate.Count(now);
  }
  EXPECT_NEAR(rate.PerSecond(now), 4, 0.1);
  EXPECT_NEAR(rate.PerSecond(now + ArrivalRate::kMemory), 4 / std::exp(1.0), 0.1);
  EXPECT_LT(rate.PerSecond(now + 20 * ArrivalRate::kMemory), 1e-6);
}

}  // namespace
}  // namespace runahead
