// The router's and the worker's end of a control stream, with a network between them that breaks.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/rpc/server.h"
#include "tests/server/router/kept_news.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/keeping_handler.h"
#include "tests/testing/tcp_proxy.h"

namespace runahead {
namespace {

using testing::FakeClock;
using testing::FakeWorker;
using testing::KeepingHandler;
using testing::KeptNews;
using testing::TcpProxy;

class ResumeTest : public ::testing::Test {
 protected:
  ResumeTest() {
    const v1::Capabilities able = FakeWorker::Able("p0", {v1::WORKER_ROLE_PREFILL}, "f", 100);
    handler_.SetCapabilities(able);
    service_ = std::make_unique<ControlService>(able, handler_, worker_clock_);
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {service_.get()};
    server_ = *RpcServer::Start(options);
    network_ = std::make_unique<TcpProxy>(server_->address());
  }
  ~ResumeTest() override { server_.reset(); }

  void Start(uint64_t job) {
    v1::ControlCommand command;
    command.mutable_start()->set_job(job);
    router_.orders()->Write(std::move(command));
  }
  void Done(uint64_t job) {
    v1::ControlReport report;
    report.mutable_done()->set_job(job);
    service_->Report(std::move(report));
  }

  KeepingHandler handler_;
  FakeClock worker_clock_;
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<TcpProxy> network_;
  KeptNews router_;
};

TEST_F(ResumeTest, OverManyCutsEachOrderAndReportComesOnceAndInOrder) {
  constexpr int kCuts = 12, kEach = 25;
  WorkerConnection connection(0, {"prefill", network_->address()}, 42, router_, RealClock());
  ASSERT_NE(router_.AwaitJoined(1), 0u);
  uint64_t job = 0;
  for (int cut = 1; cut <= kCuts; ++cut) {
    for (int i = 0; i < kEach; ++i) {
      if (i == kEach / 2) network_->Cut();
      Start(++job);
      Done(job);
    }
    ASSERT_TRUE(router_.AwaitResumed(cut));
  }
  std::vector<uint64_t> expected_reports(job);
  std::iota(expected_reports.begin(), expected_reports.end(), 1);
  std::vector<std::string> expected_orders;
  for (const uint64_t each : expected_reports) expected_orders.push_back(absl::StrCat("start ", each));
  EXPECT_EQ(handler_.Await(job), expected_orders);
  EXPECT_EQ(router_.AwaitDone(job), expected_reports);
  EXPECT_EQ(router_.left(), 0u) << "the epoch went on";
}

TEST_F(ResumeTest, WhatIsOrderedWhileTheNetworkIsAwayComesWhenItIsBack) {
  WorkerConnection connection(0, {"prefill", network_->address()}, 42, router_, RealClock());
  ASSERT_NE(router_.AwaitJoined(1), 0u);
  network_->Stall(true);
  network_->Cut();
  ASSERT_TRUE(router_.AwaitInterrupted(1));
  Start(1);
  Done(1);
  network_->Stall(false);
  ASSERT_TRUE(router_.AwaitResumed(1));
  EXPECT_EQ(handler_.Await(1), std::vector<std::string>{"start 1"});
  EXPECT_EQ(router_.AwaitDone(1), std::vector<uint64_t>{1});
}

TEST_F(ResumeTest, ARouterThatGetsNoAnswerGivesTheWorkerUpAndJoinsItAnew) {
  FakeClock clock;
  WorkerConnection connection(0, {"prefill", network_->address()}, 42, router_, clock);
  ASSERT_NE(router_.AwaitJoined(1), 0u);
  const absl::Time broke = clock.Now();
  network_->Stall(true);
  network_->Cut();
  const auto pass_until = [&](const char* what, const auto& condition) {
    return testing::Await(what, [&] {
      if (condition()) return true;
      clock.AwaitWaiters(1);
      clock.Advance(absl::Milliseconds(100));
      return false;  // the network has some time, too
    });
  };
  EXPECT_TRUE(pass_until("the worker is lost", [&] { return router_.left() > 0; }));
  EXPECT_GE(clock.Now() - broke, kResumePatience);
  network_->Stall(false);
  // The worker ends the epoch because the same router comes anew; that takes it a moment.
  EXPECT_TRUE(pass_until("the worker has ended the epoch", [&] { return !handler_.Await(0).empty(); }));
  EXPECT_EQ(handler_.Await(1), std::vector<std::string>{"gone"});
}

TEST_F(ResumeTest, AWorkerThatHasDiedIsLost) {
  FakeClock clock;  // no time passes: nobody listens at its port any more
  WorkerConnection connection(0, {"prefill", server_->address()}, 42, router_, clock);
  ASSERT_NE(router_.AwaitJoined(1), 0u);
  server_.reset();
  EXPECT_EQ(router_.AwaitLeft(1).first, WorkerState::kLost);
}

TEST_F(ResumeTest, AStopOfTheRouterEndsTheEpochAtOnce) {
  {
    WorkerConnection connection(0, {"prefill", network_->address()}, 42, router_, RealClock());
    ASSERT_NE(router_.AwaitJoined(1), 0u);
  }
  EXPECT_EQ(handler_.Await(1), std::vector<std::string>{"gone"}) << "no time passes on the worker's clock";
}

}  // namespace
}  // namespace runahead
