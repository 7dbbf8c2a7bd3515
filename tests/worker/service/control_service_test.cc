#include "worker/service/control_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "server/base/silence.h"
#include "server/rpc/transport_options.h"
#include "tests/testing/busy_cores.h"
#include "tests/worker/service/control_service_fixture.h"

namespace runahead {
namespace {

using testing::ControlServiceTest;
using ::testing::ElementsAre;
using testing::kIncarnation;
using testing::Stream;

TEST_F(ControlServiceTest, TellsItsCapabilities) {
  grpc::ClientContext context;
  v1::Capabilities capabilities;
  ASSERT_TRUE(stub_->GetCapabilities(&context, {}, &capabilities).ok());
  EXPECT_EQ(capabilities.name(), "prefill-0");
}

TEST_F(ControlServiceTest, APongSaysWhatTheWorkersClockShows) {
  Stream router(*stub_);
  router.Hello(kIncarnation);
  Step();
  v1::ControlCommand ping;
  ping.mutable_ping()->set_number(5);
  router.calls->Write(ping);
  v1::ControlReport report;
  ASSERT_TRUE(router.calls->Read(&report));
  EXPECT_EQ(report.pong().number(), 5u);
  EXPECT_EQ(report.pong().clock_ns(), absl::ToUnixNanos(clock_.Now()));
  EXPECT_NE(report.pong().clock_ns(), 0);
}

TEST_F(ControlServiceTest, APongSaysWhatADecodeWorkerHas) {
  Stream router(*stub_);
  router.Hello(kIncarnation);
  v1::ControlCommand ping;
  ping.mutable_ping()->set_number(1);
  ping.mutable_ping()->set_evictions_heard(6);
  router.calls->Write(ping);
  v1::ControlReport report;
  ASSERT_TRUE(router.calls->Read(&report));
  EXPECT_EQ(report.pong().decode().slots_used(), 3);
  EXPECT_EQ(report.pong().decode().evictions(), 7u) << "it is asked for what comes behind what was heard";
}

TEST_F(ControlServiceTest, APongSaysHowLongThreadsWaitedForCores) {
  if (!testing::TellsWaits()) GTEST_SKIP() << "the kernel does not tell";
  const testing::BusyCores busy;
  Stream router(*stub_);
  router.Hello(kIncarnation);
  meter_->Begin(1);
  v1::ControlReport report;
  do {
    Step();
    v1::ControlCommand ping;
    ping.mutable_ping()->set_number(1);
    router.calls->Write(ping);
    ASSERT_TRUE(router.calls->Read(&report));
    ASSERT_EQ(report.pong().progress(0).name(), "prefill");
  } while (report.pong().progress(0).waited_ns() == 0);
  EXPECT_LE(report.pong().progress(0).waited_ns(), report.pong().progress(0).since_ns());
}

TEST_F(ControlServiceTest, CommandsReachTheHandlerInOrderAndReportsTheRouter) {
  Stream router(*stub_);
  router.Hello(kIncarnation);
  v1::ControlCommand line, start, cancel, release;
  line.mutable_form_line()->mutable_successor()->set_name("prefill-1");
  start.mutable_start()->set_job(5);
  cancel.mutable_cancel()->set_job(5);
  release.mutable_release()->mutable_lease()->set_number(8);
  uint64_t number = 0;
  for (const v1::ControlCommand& command : {line, start, cancel, release}) router.Order(command, ++number);
  EXPECT_THAT(handler_.Await(4), ElementsAre("line prefill-1", "start 5", "cancel 5", "release 8"));
  for (uint64_t job = 1; job <= 50; ++job) {
    v1::ControlReport report;
    report.mutable_done()->set_job(job);
    service_->Report(report);
  }
  for (uint64_t job = 1; job <= 50; ++job) {
    v1::ControlReport report;
    ASSERT_TRUE(router.calls->Read(&report));
    EXPECT_EQ(report.done().job(), job);
  }
  EXPECT_EQ(router.Ping(77), 77u);
  EXPECT_EQ(router.Goodbye().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(handler_.Await(5).back(), "gone");
}

TEST_F(ControlServiceTest, AMissingOrderEndsTheStream) {
  Stream router(*stub_);
  router.Hello(kIncarnation);
  router.Start(5, 2);
  EXPECT_EQ(router.End().error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(handler_.Await(0), ElementsAre());
}

TEST_F(ControlServiceTest, BearsTenSecondsOfSilenceAndAPauseOfItsOwn) {
  Stream router(*stub_);
  router.Hello(kIncarnation);
  EXPECT_EQ(router.Ping(1), 1u);
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(60));  // nobody looked meanwhile: this process stood still
  const absl::Time heard = clock_.Now();
  while (clock_.Now() < heard + absl::Milliseconds(9900)) Step();
  EXPECT_EQ(router.Ping(2), 2u);
  while (handler_.Await(0).empty()) Step();
  EXPECT_GE(clock_.Now() - heard, absl::Milliseconds(19900) + kResumeGrace);
  EXPECT_EQ(router.End().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(handler_.Await(1).back(), "gone");
}

// Whoever comes back from the longest pause that is borne finds its connections there (transport_options.h).
TEST(ControlService, TheSilenceThatIsBorneFitsIntoTheTransportsTimeoutTwice) {
  EXPECT_GE(kProcessKeepAlive.timeout, 2 * kRouterSilence);
}

// Was: the stream of a router ended while this worker was flooded, and with it all that the router had asked for.
TEST_F(ControlServiceTest, ThatTheWorkerIsBehindWithReadingIsNotHeldAgainstTheRouter) {
  Stream router(*stub_);
  router.Hello(kIncarnation);
  EXPECT_EQ(router.Ping(1), 1u);
  hearing_.Stand(clock_.Now());
  const absl::Time heard = clock_.Now();
  while (clock_.Now() < heard + kRouterSilence + Silence::kLongestLag - absl::Milliseconds(200)) Step();
  EXPECT_EQ(router.Ping(2), 2u);
}

TEST_F(ControlServiceTest, RefusesAStaleIncarnationAndAStreamWithoutHello) {
  Stream stale(*stub_);
  stale.Hello(kIncarnation + 1);
  EXPECT_EQ(stale.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  Stream early(*stub_);
  early.Hello(kIncarnation, /*epoch=*/1);
  EXPECT_EQ(early.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  Stream rude(*stub_);
  v1::ControlCommand cancel;
  cancel.mutable_cancel()->set_job(1);
  rude.calls->Write(cancel);
  EXPECT_EQ(rude.End().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  Stream good(*stub_);
  good.Hello(kIncarnation);
  EXPECT_EQ(good.Ping(3), 3u);
  EXPECT_TRUE(handler_.Await(0).empty());
}

// What the router is told next, pongs left out.
v1::ControlReport Next(Stream& stream) {
  v1::ControlReport report;
  while (stream.calls->Read(&report) && report.has_pong()) {
  }
  return report;
}

TEST_F(ControlServiceTest, DrainingIsToldAndAwaitsTheRoutersWord) {
  Stream stream(*stub_);
  stream.Hello(kIncarnation);
  ASSERT_EQ(stream.Ping(1), 1u);
  auto drained = std::async(std::launch::async, [this] { return service_->Drain(absl::Hours(1)); });
  EXPECT_TRUE(Next(stream).has_draining());
  EXPECT_EQ(stream.Ping(2), 2u);
  EXPECT_EQ(drained.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  v1::ControlCommand command;
  command.mutable_drained();
  stream.Order(command, 1);
  EXPECT_TRUE(drained.get());
  stream.End();
}

TEST_F(ControlServiceTest, DrainingEndsWithTheTimeForIt) {
  Stream stream(*stub_);
  stream.Hello(kIncarnation);
  ASSERT_EQ(stream.Ping(1), 1u);
  auto drained = std::async(std::launch::async, [this] { return service_->Drain(absl::Milliseconds(50)); });
  EXPECT_TRUE(Next(stream).has_draining());
  while (drained.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) Step();
  EXPECT_FALSE(drained.get());
  stream.End();
}

TEST_F(ControlServiceTest, WithoutARouterThereIsNothingToDrainAndALaterOneIsTold) {
  EXPECT_TRUE(service_->Drain(absl::Hours(1)));
  Stream stream(*stub_);
  stream.Hello(kIncarnation);
  EXPECT_TRUE(Next(stream).has_draining());
  stream.End();
}

TEST_F(ControlServiceTest, DrainingEndsWithTheRouter) {
  Stream stream(*stub_);
  stream.Hello(kIncarnation);
  ASSERT_EQ(stream.Ping(1), 1u);
  auto drained = std::async(std::launch::async, [this] { return service_->Drain(absl::Hours(1)); });
  EXPECT_TRUE(Next(stream).has_draining());
  stream.Goodbye();
  EXPECT_TRUE(drained.get());
}

}  // namespace
}  // namespace runahead
