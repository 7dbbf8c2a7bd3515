#include "scheduler/partition/schedule.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(Schedule, NamesAreReadBack) {
  for (const Schedule schedule : kSchedules) EXPECT_EQ(ParseSchedule(ScheduleName(schedule)), schedule);
  EXPECT_THAT(ScheduleNames(), testing::ElementsAre("kvr", "kvr-even", "single", "tsp", "tsp-causal"));
  EXPECT_EQ(ParseSchedule("ring"), std::nullopt);
  EXPECT_EQ(ParseSchedule(""), std::nullopt);
}

}  // namespace
}  // namespace runahead
