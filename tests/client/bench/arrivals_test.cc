#include "client/bench/arrivals.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace runahead {
namespace {

std::vector<double> Times(double rate, uint64_t seed, int count) {
  PoissonArrivals arrivals(rate, seed);
  std::vector<double> times;
  for (int i = 0; i < count; ++i) times.push_back(absl::ToDoubleSeconds(arrivals.Next()));
  return times;
}

TEST(PoissonArrivals, PausesAreExponentialWithTheRatesMean) {
  constexpr int kCount = 20'000;
  constexpr double kRate = 50;
  const std::vector<double> times = Times(kRate, 7, kCount);
  EXPECT_EQ(times[0], 0);
  int longer = 0;  // than the mean, which e^-1 of exponential pauses are
  double squares = 0;
  for (int i = 1; i < kCount; ++i) {
    const double pause = times[i] - times[i - 1];
    ASSERT_GE(pause, 0);
    squares += pause * pause;
    if (pause > 1 / kRate) ++longer;
  }
  // Four standard errors or more; the seed makes them the same in each run.
  EXPECT_NEAR(times.back() / (kCount - 1), 1 / kRate, 0.03 / kRate);
  EXPECT_NEAR(squares / (kCount - 1), 2 / (kRate * kRate), 0.15 / (kRate * kRate));
  EXPECT_NEAR(longer / double(kCount), std::exp(-1), 0.015);
}

TEST(PoissonArrivals, TheSeedDecides) {
  EXPECT_EQ(Times(3, 1, 50), Times(3, 1, 50));
  EXPECT_NE(Times(3, 1, 50), Times(3, 2, 50));
}

TEST(PoissonArrivals, WithoutARateAllComeAtOnce) {
  EXPECT_EQ(Times(std::numeric_limits<double>::infinity(), 1, 3), std::vector<double>(3, 0));
}

}  // namespace
}  // namespace runahead
