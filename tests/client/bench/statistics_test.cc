// Expected values are numpy's: percentile(values, p), std(values).
#include "client/bench/statistics.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(Statistics, PercentilesLieBetweenValuesAsNumpysDefaultHasThem) {
  EXPECT_DOUBLE_EQ(PercentileOf({15, 20, 35, 40, 50}, 40), 29);
  EXPECT_DOUBLE_EQ(PercentileOf({15, 20, 35, 40, 50}, 0), 15);
  EXPECT_DOUBLE_EQ(PercentileOf({15, 20, 35, 40, 50}, 100), 50);
  EXPECT_DOUBLE_EQ(PercentileOf({15, 20, 35, 40, 50}, 75), 40);
  EXPECT_DOUBLE_EQ(PercentileOf({7}, 99), 7);
}

TEST(Statistics, DistributionsDoNotDependOnTheOrder) {
  const Distribution found = DistributionOf({10, 1, 9, 2, 8, 3, 7, 4, 6, 5});
  EXPECT_DOUBLE_EQ(found.mean, 5.5);
  EXPECT_DOUBLE_EQ(found.median, 5.5);
  EXPECT_NEAR(found.std, 2.8722813232690143, 1e-12);
  EXPECT_NEAR(found.p90, 9.1, 1e-12);
  EXPECT_NEAR(found.p95, 9.55, 1e-12);
  EXPECT_NEAR(found.p99, 9.91, 1e-12);
}

TEST(Statistics, OfNothingAllIsZero) {
  const Distribution found = DistributionOf({});
  EXPECT_EQ(found.mean, 0);
  EXPECT_EQ(found.p99, 0);
}

}  // namespace
}  // namespace runahead
