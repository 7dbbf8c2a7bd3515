#include "server/base/progress_meter.h"

#include <gtest/gtest.h>

#include <utility>

#include "scheduler/placement/progress.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using testing::FakeClock;

ProgressView ViewOf(const ProgressMeter& meter) {
  const ProgressMeter::Reading reading = meter.Read();
  return {reading.computing, reading.since, reading.usual, reading.first, reading.done};
}

class ProgressMeterTest : public ::testing::Test {
 protected:
  void Unit(double work, absl::Duration takes) {
    meter_.Begin(work);
    clock_.Advance(takes);
    meter_.End();
  }

  FakeClock clock_;
  ProgressMeter meter_{clock_};
};

TEST_F(ProgressMeterTest, AThreadThatRestsUntilSomethingIsWantedComputesNothing) {
  EXPECT_FALSE(meter_.Read().computing);
  meter_.Awake();
  EXPECT_TRUE(meter_.Read().computing);
  meter_.Resting();
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(meter_.Read().computing);
}

TEST_F(ProgressMeterTest, AThreadThatDoesNotTakeUpWhatIsWantedIsSeen) {
  meter_.Wanted();
  clock_.Advance(absl::Seconds(4));
  meter_.Wanted();
  clock_.Advance(absl::Seconds(4));
  EXPECT_TRUE(meter_.Read().computing);
  EXPECT_EQ(meter_.Read().since, absl::Seconds(8)) << "since the first";
  EXPECT_FALSE(meter_.Read().first);
  meter_.Awake();
  EXPECT_EQ(meter_.Read().since, absl::ZeroDuration());
  meter_.Resting();
  EXPECT_FALSE(meter_.Read().computing);
}

TEST_F(ProgressMeterTest, UnitsOfOneSizeSayWhatIsUsual) {
  Unit(1000, absl::Seconds(2));
  meter_.Begin(1010);
  clock_.Advance(absl::Seconds(30));
  const ProgressMeter::Reading reading = meter_.Read();
  EXPECT_TRUE(reading.computing);
  EXPECT_EQ(reading.since, absl::Seconds(30));
  EXPECT_NEAR(absl::ToDoubleSeconds(reading.usual), 2.02, 1e-6);
  EXPECT_FALSE(reading.first);
  EXPECT_EQ(reading.done, 1u);
}

TEST_F(ProgressMeterTest, OfTwoUnitsInARowTheSecondBeginsWithTheEndOfTheFirst) {
  meter_.Begin(8);
  meter_.Begin(8);
  clock_.Advance(absl::Seconds(3));
  meter_.End();
  EXPECT_TRUE(meter_.Read().computing);
  EXPECT_EQ(meter_.Read().since, absl::ZeroDuration());
  clock_.Advance(absl::Seconds(3));
  meter_.End();
  EXPECT_FALSE(meter_.Read().computing);
  meter_.Begin(8);
  EXPECT_NEAR(absl::ToDoubleSeconds(meter_.Read().usual), 3, 1e-6) << "not 3 and 6";
}

// A layer of 100,000 tokens takes minutes on a worker that has only ever had short prompts.
TEST_F(ProgressMeterTest, ASlowLongPromptIsReckonedByTheShortOnesAndIsNotTakenToHang) {
  const auto work = [](double tokens) { return tokens * (1 + 1e-3 * tokens); };
  const auto took = [&](double tokens) { return absl::Milliseconds(2) * work(tokens); };
  Unit(work(500), took(500));
  meter_.Begin(work(100'000));
  const absl::Duration whole = took(100'000);
  EXPECT_GT(whole, absl::Hours(5));
  ProgressJudge judge;
  for (absl::Duration t; t < 3 * whole; t += whole / 50) {
    const ProgressView view = ViewOf(meter_);
    EXPECT_TRUE(view.computing);
    EXPECT_TRUE(view.first);
    ASSERT_EQ(judge.Judge(view, clock_.Now()), Liveness::kFine) << view.since;
    clock_.Advance(whole / 50);
  }
}

// The first step of a prompt projects and attends to nothing: what the layers after it take is not reckoned by that.
TEST_F(ProgressMeterTest, WhatIsNotWholeTellsNothingAndIsBoundedAsIfItWere) {
  meter_.Expect(1000, absl::Milliseconds(100), /*compiles=*/false);
  meter_.Begin(1'000'000, /*whole=*/false);
  EXPECT_EQ(meter_.Read().usual, absl::Seconds(100));
  clock_.Advance(absl::Seconds(1));
  meter_.End();
  EXPECT_EQ(meter_.Read().done, 1u);
  meter_.Begin(1'000'000);
  EXPECT_EQ(meter_.Read().usual, absl::Seconds(100));
}

// A worker that has done nothing yet: its start has measured a layer of 1,000 tokens.
TEST_F(ProgressMeterTest, WhatTheStartMeasuredBoundsTheFirstUnitOfAnySize) {
  for (const auto& [work, patience] : {std::pair(10.0, absl::Seconds(5)), std::pair(1000.0, absl::Seconds(5)),
                                       std::pair(100'000.0, absl::Seconds(200))}) {
    ProgressMeter meter(clock_);
    meter.Expect(1000, absl::Milliseconds(200), /*compiles=*/false);
    meter.Begin(work);
    EXPECT_EQ(PatienceWith(ViewOf(meter)), patience) << work;
    ProgressJudge judge;
    clock_.Advance(patience);
    EXPECT_EQ(judge.Judge(ViewOf(meter), clock_.Now()), Liveness::kFine);
    clock_.Advance(absl::Milliseconds(500));
    EXPECT_EQ(judge.Judge(ViewOf(meter), clock_.Now()), Liveness::kSuspected);
    clock_.Advance(kSuspicion);
    EXPECT_EQ(judge.Judge(ViewOf(meter), clock_.Now()), Liveness::kHung);
    EXPECT_EQ(meter.Read().done, 0u) << "what the start measured is no unit of the thread's";
  }
}

TEST_F(ProgressMeterTest, WhereKernelsAreCompiledTheFirstOfASizeHasAMinute) {
  meter_.Expect(1000, absl::Milliseconds(200), /*compiles=*/true);
  meter_.Begin(1000);
  EXPECT_EQ(PatienceWith(ViewOf(meter_)), absl::Seconds(5)) << "the start has compiled these";
  meter_.End();
  meter_.Begin(10);
  EXPECT_EQ(PatienceWith(ViewOf(meter_)), absl::Minutes(1));
}

TEST_F(ProgressMeterTest, OnlyTheVeryFirstUnitOfAMeterThatKnowsNothingMayTakeTenMinutes) {
  meter_.Begin(1000);
  EXPECT_EQ(PatienceWith(ViewOf(meter_)), absl::Minutes(10));
  clock_.Advance(absl::Seconds(1));
  meter_.End();
  meter_.Begin(100'000);
  EXPECT_EQ(PatienceWith(ViewOf(meter_)), absl::Seconds(1000));
  meter_.End();
}

TEST_F(ProgressMeterTest, APatientMeterTakesEachUnitForTheFirst) {
  ProgressMeter patient(clock_, /*patient=*/true);
  patient.Begin(1);
  patient.End();
  patient.Begin(1);
  EXPECT_TRUE(patient.Read().first);
}

TEST_F(ProgressMeterTest, JobsAreToldWithWhatTheyDoAndSinceWhen) {
  meter_.SetJob(7, JobActivity::kQueued);
  meter_.SetJob(7, JobActivity::kComputing);
  meter_.SetJob(7, JobActivity::kWaiting, "prefill-0");
  meter_.SetJob(8, JobActivity::kQueued);
  clock_.Advance(absl::Seconds(3));
  const std::vector<ProgressMeter::Job> jobs = meter_.Read().jobs;
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].job, 7u);
  EXPECT_EQ(jobs[0].activity, JobActivity::kWaiting);
  EXPECT_EQ(jobs[0].waits_for, "prefill-0");
  EXPECT_EQ(jobs[0].steps, 1u);
  EXPECT_EQ(jobs[0].since, absl::Seconds(3));
  meter_.EndJob(7);
  EXPECT_EQ(meter_.Read().jobs.size(), 1u);
  EXPECT_FALSE(meter_.Read().computing) << "jobs that wait compute nothing";
}

}  // namespace
}  // namespace runahead
