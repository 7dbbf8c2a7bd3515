#include "scheduler/recompute/smoothed_time.h"

#include <cmath>

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(SmoothedTime, ForgetsTheOldValueInTenSteps) {
  SmoothedTime time(1);
  for (int i = 0; i < 20; ++i) time.Add(1);
  for (int i = 0; i < 10; ++i) time.Add(2);
  EXPECT_NEAR(time.value(), 2, 0.02);
}

TEST(SmoothedTime, OneOutlierChangesNothing) {
  SmoothedTime time(1);
  for (int i = 0; i < 5; ++i) time.Add(1);
  for (const double measured : {1000.0, 1.0, 1.0}) {
    time.Add(measured);
    EXPECT_DOUBLE_EQ(time.value(), 1);
  }
}

TEST(SmoothedTime, IsCarefulOfOneLongerMeasurementOnly) {
  SmoothedTime time(1);
  for (int i = 0; i < 5; ++i) time.Add(1);
  time.Add(3);
  EXPECT_EQ(time.careful(), 3);
  time.Add(1.2);
  EXPECT_EQ(time.careful(), time.value());
  time.Add(0.1);
  EXPECT_EQ(time.careful(), time.value());
}

TEST(SmoothedTime, AGuessGivesWayToTheFirstMeasurement) {
  SmoothedTime time(100, true);
  EXPECT_TRUE(time.guess());
  time.Add(1);
  EXPECT_EQ(time.value(), 1);
  EXPECT_FALSE(time.guess());
  time.Add(2);
  EXPECT_EQ(time.value(), 1.5);
}

TEST(SmoothedTime, IgnoresWhatIsNoTime) {
  SmoothedTime time(1, true);
  for (const double bad : {0.0, -1.0, double{INFINITY}, double{NAN}}) time.Add(bad);
  EXPECT_EQ(time.value(), 1);
  EXPECT_TRUE(time.guess());
}

}  // namespace
}  // namespace runahead
