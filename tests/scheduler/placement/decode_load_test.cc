#include "scheduler/placement/decode_load.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kCapacity = 1000;

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

DecodeReport Said(int64_t slots, int64_t used_tokens, std::vector<int64_t> remaining = {}) {
  DecodeReport report;
  report.slots_used = slots;
  report.running = static_cast<int64_t>(remaining.size());
  report.used_tokens = used_tokens;
  report.growable_tokens = kCapacity - used_tokens;
  report.step = absl::Milliseconds(100);
  report.remaining = std::move(remaining);
  return report;
}

TEST(DecodeLoad, OfAWorkerThatSaysNothingTheRoutersOwnCountStands) {
  DecodeLoad load;
  load.Taken(300, kCapacity, At(0));
  load.Taken(200, kCapacity, At(0));
  load.Returned(300);
  EXPECT_EQ(load.leases(), 1);
  EXPECT_EQ(load.reserved_tokens(kCapacity), 200);
  EXPECT_THAT(load.Ends(At(1)), IsEmpty());
}

TEST(DecodeLoad, CountsWhatWasPromisedAndGivenBackSinceTheReport) {
  DecodeLoad load(/*reports=*/true);
  load.Taken(300, kCapacity, At(0));
  EXPECT_EQ(load.leases(), 1) << "nothing was said yet";
  // The worker has five leases. This router knows of one.
  load.Reported(Said(5, 512), At(1), At(1.1));
  EXPECT_EQ(load.leases(), 5);
  EXPECT_EQ(load.reserved_tokens(kCapacity), 512);
  load.Taken(100, kCapacity, At(2));
  load.Returned(300);
  EXPECT_EQ(load.leases(), 5);
  EXPECT_EQ(load.reserved_tokens(kCapacity), 312);
  load.Reported(Said(4, 256), At(3), At(3.1));
  EXPECT_EQ(load.leases(), 4) << "the report counts both";
  EXPECT_EQ(load.reserved_tokens(kCapacity), 256);
}

TEST(DecodeLoad, WhatAReportMayNotCountYetCountsTwiceUntilTheNext) {
  DecodeLoad load(/*reports=*/true);
  load.Taken(100, kCapacity, At(1.05));  // between question and answer
  load.Reported(Said(1, 256), At(1), At(1.1));
  EXPECT_EQ(load.leases(), 2);
  load.Returned(100);  // may have ended before the answer was given
  load.Reported(Said(1, 256), At(2), At(2.1));
  EXPECT_EQ(load.leases(), 1);
}

TEST(DecodeLoad, TheSmallerOfWhatIsUnusedAndGrowableIsFree) {
  DecodeLoad load(/*reports=*/true);
  DecodeReport report = Said(1, 256);
  report.growable_tokens = 512;
  load.Reported(report, At(1), At(1));
  EXPECT_EQ(load.reserved_tokens(kCapacity), kCapacity - 512);
}

TEST(DecodeLoad, ARefusalCountsUntilTheNextReport) {
  DecodeLoad load(/*reports=*/true);
  load.Reported(Said(1, 256), At(1), At(1));
  load.Refused(500, kCapacity);
  EXPECT_EQ(load.reserved_tokens(kCapacity), kCapacity - 499);
  load.Reported(Said(1, 256), At(2), At(2));
  EXPECT_EQ(load.reserved_tokens(kCapacity), 256);
}

TEST(DecodeLoad, ForeseesWhenSequencesEndAtTheLatest) {
  DecodeLoad load(/*reports=*/true);
  load.Reported(Said(3, 256, {1, 10, 20}), At(1), At(1));
  EXPECT_THAT(load.Ends(At(1)), ElementsAre(0.1, 1.0, 2.0));
  EXPECT_THAT(load.Ends(At(1.5)), ElementsAre(0.0, 0.5, 1.5));
  load.Returned(100);  // it may have been the first
  EXPECT_THAT(load.Ends(At(1)), ElementsAre(1.0, 2.0));
}

TEST(DecodeLoad, IsIdleOnceAllIsAnsweredAndGivenBack) {
  DecodeLoad load(/*reports=*/true);
  load.Asked();
  EXPECT_FALSE(load.idle());
  load.Taken(100, kCapacity, At(0));
  load.Answered();
  EXPECT_FALSE(load.idle());
  load.Returned(100);
  EXPECT_TRUE(load.idle());
}

}  // namespace
}  // namespace runahead
