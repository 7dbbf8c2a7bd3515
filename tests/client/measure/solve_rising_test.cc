#include "client/measure/solve_rising.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(SolveRising, FindsWhereItReachesTheTargetOverManyMagnitudes) {
  for (const double x : {2e-6, 0.5, 3e5}) {
    EXPECT_NEAR(SolveRising(1e-6, 1e6, x * x, [](double at) { return at * at; }) / x, 1, 1e-6) << x;
  }
}

TEST(SolveRising, GivesTheEndThatComesNearestWhereTheTargetIsBeyond) {
  const auto same = [](double at) { return at; };
  EXPECT_NEAR(SolveRising(0.1, 10, 1e-3, same), 0.1, 1e-6);
  EXPECT_NEAR(SolveRising(0.1, 10, 1e3, same), 10, 1e-5);
}

}  // namespace
}  // namespace runahead
