#include "client/measure/median.h"

#include <cmath>

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(Median, OfAnEvenNumberIsBetweenTheMiddleOnes) {
  EXPECT_EQ(MedianOf({4, 1, 9, 2}), 3);
  EXPECT_EQ(MedianOf({4, 1, 9}), 4);
  EXPECT_EQ(MedianOf({7}), 7);
}

TEST(Median, ErrorAndDeviationDoNotSeeOutliers) {
  EXPECT_EQ(MedianDeviationOf({1, 2, 3, 4, 500}), 1);
  EXPECT_NEAR(MedianErrorOf({1, 2, 3, 4, 500}), 1.2533 * 1.4826 * 1 / std::sqrt(5.0), 1e-12);
  EXPECT_EQ(MedianErrorOf({5}), 0);
}

}  // namespace
}  // namespace runahead
