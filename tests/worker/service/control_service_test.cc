#include "worker/service/control_service.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>

#include "server/rpc/server.h"

namespace runahead {
namespace {

using testing::ElementsAre;

constexpr uint64_t kIncarnation = 4711;

// Keeps what the router commanded, as words.
class KeepingHandler : public ControlHandler {
 public:
  void OnFormLine(const v1::FormLine& line) override { Add("line " + line.successor().name()); }
  void OnStart(const v1::StartJob& start) override { Add("start " + std::to_string(start.job())); }
  void OnCancel(uint64_t job) override { Add("cancel " + std::to_string(job)); }
  void OnRelease(const v1::LeaseId& lease) override { Add("release " + std::to_string(lease.number())); }
  void OnRouterGone() override { Add("gone"); }

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
};

// A router's end of a control stream.
struct Stream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ControlCommand, v1::ControlReport>> calls;
  explicit Stream(v1::Worker::Stub& stub) : calls(stub.Control(&context)) {}
  void Hello(uint64_t incarnation) {
    v1::ControlCommand command;
    command.mutable_hello()->set_worker_incarnation(incarnation);
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

class ControlServiceTest : public testing::Test {
 protected:
  ControlServiceTest() {
    v1::Capabilities capabilities;
    capabilities.set_incarnation(kIncarnation);
    capabilities.set_name("prefill-0");
    service_ = std::make_unique<ControlService>(capabilities, handler_, [this] { given_up_ = true; });
    RpcServerOptions options;
    options.listen = "127.0.0.1:0";
    options.services = {service_.get()};
    server_ = *RpcServer::Start(options);
    stub_ = v1::Worker::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  ~ControlServiceTest() override { server_.reset(); }

  KeepingHandler handler_;
  std::atomic<bool> given_up_ = false;
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
  second.Hello(kIncarnation);
  const grpc::Status refused = second.End();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), testing::HasSubstr("another router"));
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
  Stream second(*stub_);
  second.Hello(kIncarnation);
  EXPECT_EQ(second.Ping(2), 2u);
}

TEST_F(ControlServiceTest, RefusesAStaleIncarnationAndAStreamWithoutHello) {
  Stream stale(*stub_);
  stale.Hello(kIncarnation + 1);
  EXPECT_EQ(stale.End().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
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

TEST_F(ControlServiceTest, EndsWhenTheRouterHasGivenItUp) {
  Stream router(*stub_);
  v1::ControlCommand hello;
  hello.mutable_hello()->set_worker_incarnation(kIncarnation);
  hello.mutable_hello()->set_given_up(true);
  router.calls->Write(hello);
  EXPECT_EQ(router.End().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(given_up_);
}

}  // namespace
}  // namespace runahead
