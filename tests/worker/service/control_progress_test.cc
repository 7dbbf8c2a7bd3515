// What a worker's answers to pings say of what it gets done: each thread computes or waits, each job does something or
// waits for somebody, and since when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/service/control_service_fixture.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Pong PongTo(testing::Stream& router) {
  v1::ControlCommand ping;
  ping.mutable_ping()->set_number(1);
  router.calls->Write(ping);
  return router.Read().pong();
}

int64_t ToMs(int64_t ns) {
  return ns / 1'000'000;
}

class ControlProgressTest : public testing::ControlServiceTest {
 protected:
  ControlProgressTest() : router_(*stub_) { router_.Hello(testing::kIncarnation); }

  // 100 ms each.
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }
  // Of a pong's jobs each as a line: which, what it does, for whom it waits, how many steps it has begun, since when.
  std::vector<std::string> Jobs() {
    const v1::Pong pong = PongTo(router_);
    std::vector<std::string> lines;
    for (const v1::JobProgress& job : pong.jobs()) {
      std::string what = v1::JobActivity_Name(job.activity());
      what.erase(0, std::string("JOB_ACTIVITY_").size());
      lines.push_back(absl::StrCat(job.job(), " ", what, " for '", job.waits_for(), "', ", job.steps(), " steps, ",
                                   ToMs(job.since_ns()), " ms"));
    }
    return lines;
  }
  v1::ThreadProgress Thread() {
    const v1::Pong pong = PongTo(router_);
    EXPECT_EQ(pong.progress_size(), 2) << "the role's, and the service's own";
    EXPECT_EQ(pong.progress(0).name(), "prefill");
    EXPECT_EQ(pong.progress(1).name(), "control");
    return pong.progress(0);
  }

  testing::Stream router_;
};

TEST_F(ControlProgressTest, APongSaysOfEachJobWhatItDoesForWhomItWaitsAndSinceWhen) {
  EXPECT_THAT(Jobs(), IsEmpty());
  meter_->SetJob(1, JobActivity::kQueued);
  for (const uint64_t begun : {2, 3, 4}) meter_->SetJob(begun, JobActivity::kComputing);
  meter_->SetJob(3, JobActivity::kWaiting, "prefill-0");
  meter_->SetJob(4, JobActivity::kDelivering);
  Steps(2);
  EXPECT_THAT(Jobs(),
              ElementsAre("1 QUEUED for '', 0 steps, 200 ms", "2 COMPUTING for '', 1 steps, 200 ms",
                          "3 WAITING for 'prefill-0', 1 steps, 200 ms", "4 DELIVERING for '', 1 steps, 200 ms"));
  meter_->SetJob(2, JobActivity::kWaiting, "a layer buffer");
  meter_->SetJob(3, JobActivity::kComputing);
  meter_->EndJob(4);
  Steps(3);
  EXPECT_THAT(Jobs(), ElementsAre("1 QUEUED for '', 0 steps, 500 ms", "2 WAITING for 'a layer buffer', 1 steps, 300 ms",
                                  "3 COMPUTING for '', 2 steps, 300 ms"));
}

TEST_F(ControlProgressTest, APongSaysOfAThreadWhetherItComputesSinceWhenAndWhatIsUsual) {
  meter_->Begin(1000);
  Steps(3);
  v1::ThreadProgress thread = Thread();
  EXPECT_TRUE(thread.computing());
  EXPECT_TRUE(thread.first());
  EXPECT_EQ(ToMs(thread.since_ns()), 300);
  EXPECT_EQ(thread.usual_ns(), 0) << "nothing is known yet";
  EXPECT_EQ(thread.done(), 0u);
  meter_->End();
  meter_->Begin(1000);
  Steps(1);
  thread = Thread();
  EXPECT_TRUE(thread.computing());
  EXPECT_FALSE(thread.first());
  EXPECT_EQ(ToMs(thread.since_ns()), 100);
  EXPECT_NEAR(static_cast<double>(thread.usual_ns()), 3e8, 1) << "300 ms";
  EXPECT_EQ(thread.done(), 1u);
}

TEST_F(ControlProgressTest, AThreadWhoseJobsAllWaitIsNotSaidToCompute) {
  meter_->Awake();
  meter_->SetJob(1, JobActivity::kComputing);
  meter_->Begin(1000);
  Steps(1);
  EXPECT_TRUE(Thread().computing());
  meter_->SetJob(1, JobActivity::kWaiting, "prefill-0");
  meter_->End();
  meter_->Resting();
  Steps(2);
  const v1::ThreadProgress thread = Thread();
  EXPECT_FALSE(thread.computing());
  EXPECT_EQ(thread.since_ns(), 0);
  EXPECT_EQ(thread.done(), 1u);
  EXPECT_THAT(Jobs(), ElementsAre("1 WAITING for 'prefill-0', 1 steps, 200 ms"));
}

// Its Starts do not end until they are let go.
class HeldStarts final : public testing::KeepingHandler {
 public:
  void OnStart(const v1::StartJob& start) override {
    KeepingHandler::OnStart(start);
    go_.wait();
  }
  void Go() { let_go_.set_value(); }

 private:
  std::promise<void> let_go_;
  const std::shared_future<void> go_ = let_go_.get_future().share();
};

// Pings are answered meanwhile, so only what they say shows it.
TEST_F(ControlProgressTest, ACommandThatDoesNotEndShowsInThePongs) {
  HeldStarts handler;
  v1::Capabilities capabilities;
  capabilities.set_incarnation(testing::kIncarnation);
  ControlService service(capabilities, handler, clock_, {}, {}, hearing_);
  RpcServerOptions options;
  options.listen = "127.0.0.1:0";
  options.services = {&service};
  std::unique_ptr<RpcServer> server = *RpcServer::Start(options);
  {
    const auto stub = v1::Worker::NewStub(grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
    testing::Stream router(*stub);
    router.Hello(testing::kIncarnation);
    router.Start(5, 1);
    handler.Await(1);
    clock_.Advance(absl::Milliseconds(100));
    const v1::Pong pong = PongTo(router);
    ASSERT_EQ(pong.progress_size(), 1);
    EXPECT_EQ(pong.progress(0).name(), "control");
    EXPECT_TRUE(pong.progress(0).computing());
    EXPECT_EQ(ToMs(pong.progress(0).since_ns()), 100);
    EXPECT_TRUE(pong.progress(0).first()) << "some wait for links that are closed, so it has long";
    EXPECT_EQ(pong.progress(0).done(), 0u);
    handler.Go();
  }
  server.reset();
}

}  // namespace
}  // namespace runahead
