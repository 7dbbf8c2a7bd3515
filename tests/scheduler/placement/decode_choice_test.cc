#include "scheduler/placement/decode_choice.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/admission.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RankDecodeWorkers, PutsMostFreeFirstThenFewestLeases) {
  const std::vector<DecodeView> workers = {
      {true, 1000, 600, 1}, {true, 1000, 0, 0}, {false, 9000, 0, 0}, {true, 2000, 1000, 3}, {true, 1000, 0, 1}};
  EXPECT_THAT(*RankDecodeWorkers(500, workers), ElementsAre(1, 4, 3, 0));
  EXPECT_THAT(*RankDecodeWorkers(1500, workers), ElementsAre(3));
}

TEST(RankDecodeWorkers, SaysWhatIsMissing) {
  EXPECT_EQ(RankDecodeWorkers(1, {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(RankDecodeWorkers(1, {{false, 10, 0, 0}}).status().code(), absl::StatusCode::kUnavailable);
  const absl::Status status = RankDecodeWorkers(2001, {{true, 1000, 0, 0}, {true, 2000, 0, 0}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("2001"));
  EXPECT_THAT(status.message(), HasSubstr("2000"));
}

TEST(RankDecodeWorkers, WhatAWorkerThatIsAwayCouldHoldIsWorthTryingAgain) {
  for (const int64_t last_known : {int64_t{3000}, kNeverReached}) {
    const absl::Status status = RankDecodeWorkers(2001, {{true, 2000, 0, 0}, {false, last_known, 0, 0}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("2001 tokens"));
  }
  EXPECT_EQ(RankDecodeWorkers(2001, {{true, 1000, 0, 0}, {false, 2000, 0, 0}}).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST(RankDecodeWorkers, LeavesOutWhatIsKeptForOthers) {
  std::vector<DecodeView> workers = {{true, 1000, 500, 1}, {true, 1000, 900, 0}};
  workers[0].kept_tokens = 300;
  EXPECT_THAT(*RankDecodeWorkers(200, workers), ElementsAre(0, 1));
  EXPECT_THAT(*RankDecodeWorkers(201, workers), ElementsAre(1));  // it looks full, but nothing is kept there
  workers[1].kept_tokens = 1000;
  EXPECT_EQ(RankDecodeWorkers(201, workers).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(AdmitToQueue, RefusesBeyondTheLimitAndNamesIt) {
  EXPECT_TRUE(AdmitToQueue(3, 4).ok());
  EXPECT_EQ(AdmitToQueue(4, 4).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(AdmitToQueue(4, 4).message(), HasSubstr("queue_size is 4"));
  EXPECT_FALSE(AdmitToQueue(0, 0).ok());
}

}  // namespace
}  // namespace runahead
