#include "worker/service/control_seat.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

constexpr uint64_t kWorker = 7, kRouter = 1, kOther = 2;

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

class ControlSeatTest : public ::testing::Test {
 protected:
  SeatAnswer Fresh(uint64_t router, uint32_t epoch = 3) { return seat_.Ask({router, kWorker, epoch}, now_); }
  SeatAnswer Resume(uint64_t router, uint32_t epoch = 3) {
    return seat_.Ask({router, kWorker, epoch, /*resume=*/true}, now_);
  }
  absl::Time now_ = At(0);
  ControlSeat seat_{kWorker, 3};
};

TEST_F(ControlSeatTest, OneRouterHoldsAnEpoch) {
  EXPECT_FALSE(seat_.held());
  EXPECT_EQ(Fresh(kRouter), SeatAnswer::kTaken);
  EXPECT_TRUE(seat_.held());
  EXPECT_EQ(Fresh(kOther), SeatAnswer::kOtherRouter);
  EXPECT_EQ(Resume(kOther), SeatAnswer::kOtherRouter);
}

TEST_F(ControlSeatTest, OnlyTheRouterWhoseStreamBrokeResumes) {
  Fresh(kRouter);
  seat_.Broke(At(0));
  EXPECT_EQ(Resume(kRouter), SeatAnswer::kResumed);
  seat_.Broke(At(1));
  EXPECT_TRUE(seat_.held());
  now_ = At(1) + kOthersWait - absl::Milliseconds(1);
  EXPECT_EQ(Resume(kOther), SeatAnswer::kOthersWait);
  EXPECT_EQ(Fresh(kOther), SeatAnswer::kOthersWait);
  EXPECT_EQ(Resume(kRouter), SeatAnswer::kResumed);
}

TEST_F(ControlSeatTest, ARouterThatWasRestartedTakesOverOnceTheFormerOneHasHadItsTime) {
  Fresh(kRouter);
  seat_.Broke(At(1));
  now_ = At(1) + kOthersWait;
  EXPECT_EQ(Resume(kOther), SeatAnswer::kEpochEnds);
  EXPECT_EQ(Fresh(kOther), SeatAnswer::kEpochEnds);
}

TEST_F(ControlSeatTest, ARouterThatHasNotNoticedYetThatItsStreamBrokeAtTheWorkerResumesToo) {
  Fresh(kRouter);
  EXPECT_EQ(Resume(kRouter), SeatAnswer::kResumed);
}

TEST_F(ControlSeatTest, ARouterThatComesAnewHasGivenUpWhatItHeld) {
  Fresh(kRouter);
  EXPECT_EQ(Fresh(kRouter), SeatAnswer::kEpochEnds);
  seat_.Broke(At(0));
  EXPECT_EQ(Fresh(kRouter), SeatAnswer::kEpochEnds);
}

TEST_F(ControlSeatTest, TheGraceTimeBeginsWithEachBreakAndEndsWithTheResume) {
  Fresh(kRouter);
  EXPECT_FALSE(seat_.Overdue(At(1000)));
  seat_.Broke(At(0));
  EXPECT_FALSE(seat_.Overdue(At(4.9)));
  EXPECT_TRUE(seat_.Overdue(At(5)));
  Resume(kRouter);
  EXPECT_FALSE(seat_.Overdue(At(1000)));
  seat_.Broke(At(1000));
  EXPECT_FALSE(seat_.Overdue(At(1004.9)));
}

TEST_F(ControlSeatTest, NothingIsResumedOfAnEpochThatEndedNorOfAnotherLife) {
  Fresh(kRouter);
  seat_.Broke(At(0));
  EXPECT_EQ(Resume(kRouter, 2), SeatAnswer::kTooLate);
  EXPECT_EQ(seat_.Ask({kRouter, kWorker + 1, 3, true}, now_), SeatAnswer::kTooLate);
  seat_.EndEpoch();
  EXPECT_FALSE(seat_.held());
  EXPECT_EQ(Resume(kRouter), SeatAnswer::kTooLate);
  seat_.BeginEpoch(4);
  EXPECT_EQ(Resume(kRouter), SeatAnswer::kTooLate);
  EXPECT_EQ(Resume(kRouter, 4), SeatAnswer::kTooLate) << "it never held that one";
}

TEST_F(ControlSeatTest, BetweenEpochsNobodyHoldsTheWorker) {
  Fresh(kRouter);
  seat_.EndEpoch();
  EXPECT_EQ(Fresh(kRouter), SeatAnswer::kStale);
  EXPECT_EQ(Fresh(kOther), SeatAnswer::kStale);
  seat_.BeginEpoch(4);
  EXPECT_EQ(Fresh(kRouter), SeatAnswer::kStale);
  EXPECT_EQ(Fresh(kOther, 4), SeatAnswer::kTaken);
}

}  // namespace
}  // namespace runahead
