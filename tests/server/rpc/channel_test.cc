#include "server/rpc/channel.h"

#include <chrono>
#include <cstdlib>
#include <future>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/rpc/loopback.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/patience.h"
#include "tests/testing/tcp_proxy.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(Channel, WaitReadyNamesTheAddressThatDoesNotAnswer) {
  const std::string nobody = "127.0.0.1:1";  // a port that only root could serve
  const auto channel = MakeChannel(nobody);
  const absl::Status status = WaitReady(*channel, nobody, absl::Milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(nobody));
}

TEST(Channel, SurvivesARestartOnTheSamePort) {
  testing::FakeInference service(testing::FinishAtOnce);
  auto server = testing::StartServer(service);
  const std::string address = server->address();
  const auto channel = MakeChannel(address);
  ASSERT_TRUE(testing::CallListModels(channel).ok());
  server.reset();
  EXPECT_FALSE(testing::CallListModels(channel).ok());
  auto again = RpcServer::Start({.listen = address, .services = {&service}, .health_names = {}});
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE(WaitReady(*channel, address, testing::LongestWait()).ok());
  EXPECT_TRUE(testing::CallListModels(channel).ok());
}

// On the other side of the world, or with its cores busy: a first answer may take longer than a new attempt does.
TEST(Channel, AServerWhoseFirstAnswerTakesLongIsWaitedFor) {
  testing::FakeInference service(testing::FinishAtOnce);
  const auto server = testing::StartServer(service);
  testing::TcpProxy far(server->address());
  far.Stall(true);
  std::future<absl::Status> call =
      std::async(std::launch::async, [&] { return testing::CallListModels(MakeChannel(far.address())); });
  EXPECT_EQ(call.wait_for(std::chrono::milliseconds(400)), std::future_status::timeout) << call.get();
  far.Stall(false);
  const absl::Status status = call.get();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Channel, IgnoresAProxyFromTheEnvironment) {
  setenv("http_proxy", "http://127.0.0.1:1", 1);
  testing::FakeInference service(testing::FinishAtOnce);
  const auto server = testing::StartServer(service);
  EXPECT_TRUE(testing::CallListModels(MakeChannel(server->address())).ok());
  unsetenv("http_proxy");
}

TEST(Channel, TimeoutsEndACall) {
  struct Reactor final : grpc::ServerUnaryReactor {
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };
  class Service final : public v1::Inference::CallbackService {
    grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext*, const v1::ListModelsRequest*,
                                         v1::ListModelsResponse*) override {
      return new Reactor;  // never answers by itself
    }
  } service;
  const auto server = testing::StartServer(service);
  const auto stub = v1::Inference::NewStub(testing::Connected(MakeChannel(server->address())));
  for (const absl::Duration timeout : {absl::Milliseconds(5), absl::ZeroDuration(), absl::Seconds(-1)}) {
    grpc::ClientContext context;
    SetTimeout(context, timeout);
    v1::ListModelsResponse response;
    EXPECT_EQ(stub->ListModels(&context, {}, &response).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  grpc::ClientContext unlimited;
  SetTimeout(unlimited, absl::InfiniteDuration());
  EXPECT_EQ(unlimited.deadline(), std::chrono::system_clock::time_point::max());
  grpc::ClientContext long_one;
  SetTimeout(long_one, absl::Hours(1e9));
  EXPECT_GT(long_one.deadline(), std::chrono::system_clock::now());
}

}  // namespace
}  // namespace runahead
