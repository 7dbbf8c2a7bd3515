#include "worker/service/control_service.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "server/rpc/server.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kIncarnation = 4711;

// Keeps what the router commanded, as words.
class KeepingHandler : public ControlHandler {
 public:
  void OnFormLine(const v1::FormLine& line) override { Add("line " + line.successor().name()); }
  void OnStart(const v1::StartJob& start) override { Add("start " + std::to_string(start.job())); }
  void OnCancel(uint64_t job) override { Add("cancel " + std::to_string(job)); }
  void OnRelease(const v1::LeaseId& lease) override { Add("release " + std::to_string(lease.number())); }
  void OnPing() override {}
  absl::StatusOr<v1::Capabilities> OnRouterGone() override {
    Add("gone");
    MutexLock lock(mu_);
    while (hold_) changed_.Wait(mu_);
    capabilities_.set_epoch(capabilities_.epoch() + 1);
    return capabilities_;
  }

  void SetCapabilities(v1::Capabilities capabilities) {
    MutexLock lock(mu_);
    capabilities_ = std::move(capabilities);
  }
  // An epoch's end takes as long as this is true.
  void Hold(bool hold) {
    MutexLock lock(mu_);
    hold_ = hold;
    changed_.NotifyAll();
  }

  std::vector<std::string> Await(size_t count) {
    MutexLock lock(mu_);
    while (words_.size() < count) changed_.Wait(mu_);
    return words_;
  }

 private:
  void Add(std::string word) {
    MutexLock lock(mu_);
    words_.push_back(std::move(word));
    changed_.NotifyAll();
  }
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> words_ RUNAHEAD_GUARDED_BY(mu_);
  v1::Capabilities capabilities_ RUNAHEAD_GUARDED_BY(mu_);
  bool hold_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

// A router's end of a control stream.
struct Stream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ControlCommand, v1::ControlReport>> calls;
  explicit Stream(v1::Worker::Stub& stub) : calls(stub.Control(&context)) {}
  void Hello(uint64_t incarnation, uint32_t epoch = 0, uint64_t router = 1) {
    v1::ControlCommand command;
    command.mutable_hello()->set_router_incarnation(router);
    command.mutable_hello()->set_worker_incarnation(incarnation);
    command.mutable_hello()->set_worker_epoch(epoch);
    calls->Write(command);
  }
  uint64_t Ping(uint64_t number) {
    v1::ControlCommand command;
    command.mutable_ping()->set_number(number);
    calls->Write(command);
    v1::ControlReport report;
    return calls->Read(&report) ? report.pong().number() : 0;
  }
  grpc::Status End() {
    calls->WritesDone();
    v1::ControlReport report;
    while (calls->Read(&report)) {
    }
    return calls->Finish();
  }
};

class ControlServiceTest : public ::testing::Test {
 protected:
  ControlServiceTest() {
    v1::Capabilities capabilities;
    capabilities.set_incarnation(kIncarnation);
    capabilities.set_name("prefill-0");
    handler_.SetCapabilities(capabilities);
    service_ = std::make_unique<ControlService>(capabilities, handler_, clock_);
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {service_.get()};
    server_ = *RpcServer::Start(options);
    stub_ = v1::Worker::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  ~ControlServiceTest() override { server_.reset(); }
  // Asks until an epoch has begun.
  v1::Capabilities AwaitCapabilities() {
    while (true) {
      grpc::ClientContext context;
      v1::Capabilities capabilities;
      if (stub_->GetCapabilities(&context, {}, &capabilities).ok()) return capabilities;
    }
  }

  // Time that the service's watch sees pass: too little for a pause.
  void Step() {
    clock_.AwaitWaiters(1);
    clock_.Advance(absl::Milliseconds(100));
  }

  KeepingHandler handler_;
  testing::FakeClock clock_;
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

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

TEST_F(ControlServiceTest, CommandsReachTheHandlerInOrderAndReportsTheRouter) {
  Stream router(*stub_);
  router.Hello(kIncarnation);
  v1::ControlCommand line, start, cancel, release;
  line.mutable_form_line()->mutable_successor()->set_name("prefill-1");
  start.mutable_start()->set_job(5);
  cancel.mutable_cancel()->set_job(5);
  release.mutable_release()->mutable_lease()->set_number(8);
  for (const v1::ControlCommand& command : {line, start, cancel, release}) router.calls->Write(command);
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
  EXPECT_TRUE(router.End().ok());
  EXPECT_EQ(handler_.Await(5).back(), "gone");
}

TEST_F(ControlServiceTest, ABrokenStreamEndsTheRoutersJobs) {
  Stream router(*stub_);
  router.Hello(kIncarnation);
  EXPECT_EQ(router.Ping(1), 1u);
  router.context.TryCancel();
  EXPECT_THAT(handler_.Await(1), ElementsAre("gone"));
}

TEST_F(ControlServiceTest, RefusesAnotherRouterAndGoesOnWithTheFirst) {
  Stream first(*stub_), second(*stub_);
  first.Hello(kIncarnation);
  EXPECT_EQ(first.Ping(1), 1u);
  second.Hello(kIncarnation, 0, /*router=*/2);
  const grpc::Status refused = second.End();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), ::testing::HasSubstr("another router"));
  EXPECT_EQ(first.Ping(2), 2u);
}

TEST_F(ControlServiceTest, TakesTheNextRouterWhenTheFirstIsGone) {
  {
    Stream first(*stub_);
    first.Hello(kIncarnation);
    EXPECT_EQ(first.Ping(1), 1u);
    EXPECT_TRUE(first.End().ok());
  }
  handler_.Await(1);
  EXPECT_EQ(AwaitCapabilities().epoch(), 1u);
  Stream second(*stub_);
  second.Hello(kIncarnation, 1, /*router=*/2);
  EXPECT_EQ(second.Ping(2), 2u);
}

TEST_F(ControlServiceTest, TakesNoRouterAndTellsNothingWhileAnEpochEnds) {
  handler_.Hold(true);
  {
    Stream first(*stub_);
    first.Hello(kIncarnation);
    EXPECT_EQ(first.Ping(1), 1u);
    first.End();
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

TEST_F(ControlServiceTest, TheSameRoutersNextStreamEndsTheFormerOneThatItLost) {
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
  EXPECT_GE(clock_.Now() - heard, absl::Milliseconds(19900));
  EXPECT_EQ(router.End().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(handler_.Await(1).back(), "gone");
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
  stream.calls->Write(command);
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
  stream.End();
  EXPECT_TRUE(drained.get());
}

}  // namespace
}  // namespace runahead
