#include "server/rpc/schedule_proto.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(ScheduleProto, EveryScheduleHasItsNumber) {
  for (const Schedule schedule : kSchedules) EXPECT_EQ(ScheduleFromProto(ScheduleToProto(schedule)), schedule);
  EXPECT_EQ(ScheduleToProto(Schedule::kKvr), v1::SCHEDULE_KVR);
  EXPECT_EQ(ScheduleToProto(Schedule::kTspCausal), v1::SCHEDULE_TSP_CAUSAL);
}

TEST(ScheduleProto, EveryNumberHasItsSchedule) {
  const google::protobuf::EnumDescriptor& numbers = *v1::Schedule_descriptor();
  for (int i = 0; i < numbers.value_count(); ++i) {
    const int number = numbers.value(i)->number();
    if (number == v1::SCHEDULE_UNSPECIFIED) continue;
    EXPECT_TRUE(ScheduleFromProto(static_cast<v1::Schedule>(number)).has_value()) << numbers.value(i)->name();
  }
}

TEST(ScheduleProto, WhatIsLeftOpenOrUnknownIsNone) {
  EXPECT_EQ(ScheduleFromProto(v1::SCHEDULE_UNSPECIFIED), std::nullopt);
  EXPECT_EQ(ScheduleFromProto(static_cast<v1::Schedule>(99)), std::nullopt);
}

}  // namespace
}  // namespace runahead
