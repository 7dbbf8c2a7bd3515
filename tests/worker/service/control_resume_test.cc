// What becomes of a control stream that breaks, and of routers that come meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/service/control_service_fixture.h"

namespace runahead {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::kIncarnation;
using testing::Stream;

using ControlResumeTest = testing::ControlServiceTest;

TEST_F(ControlResumeTest, ABrokenStreamEndsTheRoutersJobsWhenTheGraceTimeIsOver) {
  Stream router(*stub_);
  router.Hello(kIncarnation);
  EXPECT_EQ(router.Ping(1), 1u);
  const absl::Time broke = clock_.Now();
  router.context.TryCancel();
  while (handler_.Await(0).empty()) Step();
  EXPECT_GE(clock_.Now() - broke, kResumeGrace);
  EXPECT_THAT(handler_.Await(1), ElementsAre("gone"));
  Stream late(*stub_);
  late.Resume(kIncarnation, 0);
  EXPECT_EQ(late.End().error_code(), grpc::StatusCode::ABORTED);
}

// What a report says, without pongs.
std::string Word(const v1::ControlReport& report) {
  return report.has_pong() ? absl::StrCat("has ", report.pong().orders_received())
                           : absl::StrCat(report.number(), ": done ", report.done().job());
}

v1::ControlReport Done(uint64_t job) {
  v1::ControlReport report;
  report.mutable_done()->set_job(job);
  return report;
}

TEST_F(ControlResumeTest, AResumedStreamBringsWhatWasMissingInOrderAndNothingTwice) {
  Stream broken(*stub_);
  broken.Hello(kIncarnation);
  broken.Start(5, 1);
  broken.Start(6, 2);
  handler_.Await(2);
  service_->Report(Done(1));
  service_->Report(Done(2));
  EXPECT_EQ(Word(broken.Read()), "1: done 1");
  broken.context.TryCancel();
  service_->Report(Done(3));  // which no stream brings
  Stream resumed(*stub_);
  resumed.Resume(kIncarnation, /*reports_received=*/1);
  v1::ControlCommand ping;
  ping.mutable_ping()->set_reports_received(1);
  resumed.calls->Write(ping);
  EXPECT_EQ(Word(resumed.Read()), "2: done 2");
  EXPECT_EQ(Word(resumed.Read()), "3: done 3");
  EXPECT_EQ(Word(resumed.Read()), "has 2");
  resumed.Start(6, 2);  // again
  resumed.Start(7, 3);
  EXPECT_THAT(handler_.Await(3), ElementsAre("start 5", "start 6", "start 7"));
  service_->Report(Done(4));
  EXPECT_EQ(Word(resumed.Read()), "4: done 4");
  EXPECT_EQ(AwaitCapabilities().epoch(), 0u);
}

TEST_F(ControlResumeTest, ARouterThatSeesTheBreakFirstResumesAllTheSame) {
  Stream broken(*stub_), resumed(*stub_);
  broken.Hello(kIncarnation);
  broken.Start(5, 1);
  handler_.Await(1);
  resumed.Resume(kIncarnation, 0);
  EXPECT_EQ(resumed.Ping(1), 1u);
  broken.Start(6, 2);  // what is still read of the former stream counts no more
  EXPECT_EQ(broken.End().error_code(), grpc::StatusCode::CANCELLED);
  resumed.Start(7, 2);
  EXPECT_THAT(handler_.Await(2), ElementsAre("start 5", "start 7"));
}

TEST_F(ControlResumeTest, AnotherRouterNeverResumesAndTakesOverOnlyWhenTheFormerHasHadItsTime) {
  Stream broken(*stub_);
  broken.Hello(kIncarnation);
  EXPECT_EQ(broken.Ping(1), 1u);
  broken.context.TryCancel();
  const absl::Time broke = clock_.Now();
  while (handler_.Await(0).empty()) {
    Stream other(*stub_);
    other.Resume(kIncarnation, 0, /*router=*/2);
    EXPECT_THAT(other.End().error_code(),
                AnyOf(grpc::StatusCode::FAILED_PRECONDITION /* the break is not known yet */,
                      grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::ABORTED /* the epoch has ended */));
    Step();
  }
  EXPECT_GE(clock_.Now() - broke, kOthersWait);
  EXPECT_LT(clock_.Now() - broke, kResumeGrace);
  EXPECT_THAT(handler_.Await(1), ElementsAre("gone"));
  EXPECT_EQ(AwaitCapabilities().epoch(), 1u);
  Stream next(*stub_);
  next.Hello(kIncarnation, 1, /*router=*/2);
  EXPECT_EQ(next.Ping(1), 1u);
}

TEST_F(ControlResumeTest, RefusesAnotherRouterAndGoesOnWithTheFirst) {
  Stream first(*stub_), second(*stub_);
  first.Hello(kIncarnation);
  EXPECT_EQ(first.Ping(1), 1u);
  second.Hello(kIncarnation, 0, /*router=*/2);
  const grpc::Status refused = second.End();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), ::testing::HasSubstr("another router"));
  EXPECT_EQ(first.Ping(2), 2u);
}

TEST_F(ControlResumeTest, TakesTheNextRouterWhenTheFirstIsGone) {
  {
    Stream first(*stub_);
    first.Hello(kIncarnation);
    EXPECT_EQ(first.Ping(1), 1u);
    first.Goodbye();
  }
  handler_.Await(1);
  EXPECT_EQ(AwaitCapabilities().epoch(), 1u);
  Stream second(*stub_);
  second.Hello(kIncarnation, 1, /*router=*/2);
  EXPECT_EQ(second.Ping(2), 2u);
}

TEST_F(ControlResumeTest, TakesNoRouterAndTellsNothingWhileAnEpochEnds) {
  handler_.Hold(true);
  {
    Stream first(*stub_);
    first.Hello(kIncarnation);
    EXPECT_EQ(first.Ping(1), 1u);
    first.Goodbye();
  }
  handler_.Await(1);
  grpc::ClientContext context;
  v1::Capabilities capabilities;
  EXPECT_EQ(stub_->GetCapabilities(&context, {}, &capabilities).error_code(), grpc::StatusCode::UNAVAILABLE);
  Stream early(*stub_);
  early.Hello(kIncarnation, 1);
  EXPECT_EQ(early.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  handler_.Hold(false);
  EXPECT_EQ(AwaitCapabilities().epoch(), 1u);
}

TEST_F(ControlResumeTest, TheSameRoutersNextStreamEndsTheFormerOneThatItLost) {
  Stream lost(*stub_);
  lost.Hello(kIncarnation);
  EXPECT_EQ(lost.Ping(1), 1u);
  Stream next(*stub_);
  next.Hello(kIncarnation);
  EXPECT_EQ(next.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(lost.End().error_code(), grpc::StatusCode::CANCELLED);
  handler_.Await(1);
  EXPECT_EQ(AwaitCapabilities().epoch(), 1u);
  Stream good(*stub_);
  good.Hello(kIncarnation, 1);
  EXPECT_EQ(good.Ping(2), 2u);
}

}  // namespace
}  // namespace runahead
