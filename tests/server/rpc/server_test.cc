#include "server/rpc/server.h"

#include <grpcpp/generic/generic_stub.h>

#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "tests/server/rpc/loopback.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/testing/await.h"
#include "tests/testing/await_change.h"
#include "tests/testing/patience.h"

namespace runahead {
namespace {

using testing::CallRaw;
using ::testing::HasSubstr;

// How the server as a whole answers a health check.
grpc::health::v1::HealthCheckResponse::ServingStatus HealthOf(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = grpc::health::v1::Health::NewStub(channel)->Check(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.status();
}

TEST(RpcServer, ServesOnAPortOfItsOwnChoice) {
  testing::FakeInference service(testing::FinishAtOnce);
  const auto server = testing::StartServer(service);
  EXPECT_THAT(server->address(), HasSubstr("127.0.0.1:"));
  const auto channel = MakeChannel(server->address());
  EXPECT_TRUE(WaitReady(*channel, server->address(), testing::LongestWait()).ok());
  EXPECT_TRUE(testing::CallListModels(channel).ok());
}

TEST(RpcServer, IsCalledWithinItsProcess) {
  testing::FakeInference service(testing::FinishAtOnce);
  const auto server = testing::StartServer(service);
  EXPECT_TRUE(testing::CallListModels(server->InProcessChannel()).ok());
}

TEST(RpcServer, HasTheOldReflectionToo) {
  testing::FakeInference service(testing::FinishAtOnce);
  const auto server = testing::StartServer(service);
  std::string response;
  // Reflection only has a streaming method; a unary call of it is answered by the service, not by "unimplemented".
  EXPECT_NE(CallRaw(MakeChannel(server->address()), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                    std::string("\x3a\x00", 2), &response)
                .error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(response, HasSubstr("runahead.v1.Inference"));
}

// What is a few kilobytes on the wire would be as large as anybody likes. Methods that are open to all take short
// messages, and one that nobody has reads none.
TEST(RpcServer, UnfoldsNoMoreOfAMessageThanItsMethodTakes) {
  testing::FakeInference service(testing::FinishAtOnce);
  const auto server = testing::StartServer(service);
  const auto channel = MakeChannel(server->address());
  const std::string bomb(15 << 20, '\0');
  for (const grpc_compression_algorithm folded_by : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    std::string response;
    const auto call = [&](const char* method, const std::string& request) {
      return CallRaw(channel, method, request, &response, folded_by);
    };
    for (const char* const method :
         {"/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"}) {
      EXPECT_EQ(call(method, bomb).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << method;
    }
    EXPECT_EQ(call("/no/Such", bomb).error_code(), grpc::StatusCode::UNIMPLEMENTED);
    // A name of a thousand letters, which is shorter when folded.
    const std::string name = "\n\xe8\x07" + std::string(1000, 'a');
    EXPECT_THAT(call("/grpc.health.v1.Health/Check", name).error_message(), HasSubstr("there is no \"aaaa"));
    EXPECT_EQ(call("/grpc.health.v1.Health/Check", "").error_code(), grpc::StatusCode::OK);
  }
}

// gRPC's own answer has no word. Nothing of such a call is read.
TEST(RpcServer, SaysWhatThereIsInPlaceOfAMethodThatItLacks) {
  testing::FakeInference service(testing::FinishAtOnce);
  const auto server = testing::StartServer(service);
  const auto call = [&](const std::string& method) {
    std::string response;
    const grpc::Status status = CallRaw(MakeChannel(server->address()), method, "\xff", &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    return status.error_message();
  };
  EXPECT_THAT(call("/runahead.v1.Inference/Nothing"),
              HasSubstr("runahead.v1.Inference has no method Nothing; it has Gen"));
  EXPECT_THAT(call("/runahead.v1.Nobody/Generate"),
              HasSubstr("no method /runahead.v1.Nobody/Generate; its services are"));
  // It is linked, and not offered here.
  EXPECT_THAT(call("/runahead.v1.Membership/Prove"), HasSubstr("no method /runahead.v1.Membership/Prove"));
  EXPECT_LT(call("/" + std::string(4000, 'a')).size(), 1000u);
}

// The other server of the process has it: that is not to be this one's.
TEST(RpcServer, HasChannelzOnlyWhereItIsAskedFor) {
  testing::FakeInference service(testing::FinishAtOnce), other(testing::FinishAtOnce);
  const auto asked =
      RpcServer::Start({.listen = "127.0.0.1:0", .services = {&service}, .health_names = {}, .channelz = true});
  ASSERT_TRUE(asked.ok()) << asked.status();
  const auto plain = testing::StartServer(other);
  const auto call = [](const RpcServer& server) {
    std::string response;
    return CallRaw(MakeChannel(server.address()), "/grpc.channelz.v1.Channelz/GetServers", "", &response).error_code();
  };
  EXPECT_EQ(call(**asked), grpc::StatusCode::OK);
  EXPECT_EQ(call(*plain), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(RpcServer, RefusesATakenPortAndABadAddress) {
  testing::FakeInference service(testing::FinishAtOnce);
  const auto first = testing::StartServer(service);
  ::testing::internal::CaptureStderr();
  const auto second = RpcServer::Start({.listen = first->address(), .services = {&service}, .health_names = {}});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "gRPC's own lines are for --log-level debug";
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("listen: cannot listen on ", first->address(), ": Address already in use")));
  EXPECT_EQ(RpcServer::Start({.listen = "nonsense", .services = {}, .health_names = {}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A call that a test lets end when it likes.
class HeldCall {
 public:
  void Hold(grpc::ServerUnaryReactor* reactor) {
    MutexLock lock(mu_);
    reactor_ = reactor;
    changed_.NotifyAll();
  }
  grpc::ServerUnaryReactor* Await() {
    MutexLock lock(mu_);
    testing::ChangeWait wait("the call has come");
    while (reactor_ == nullptr) {
      if (!wait.Next(mu_, changed_)) break;
    }
    return reactor_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  grpc::ServerUnaryReactor* reactor_ RUNAHEAD_GUARDED_BY(mu_) = nullptr;
};

TEST(RpcServer, DrainLetsACallEndAndRefusesNewOnes) {
  HeldCall held;
  testing::FakeInference service([&](grpc::CallbackServerContext*, grpc::ServerUnaryReactor* r) { held.Hold(r); });
  const auto server = testing::StartServer(service);
  server->SetServing(true);
  const auto channel = MakeChannel(server->address());

  auto pass = server->gate().Enter();
  ASSERT_TRUE(pass.ok());
  absl::Status answer = absl::UnknownError("none yet");
  std::thread client([&] { answer = testing::CallListModels(channel); });
  grpc::ServerUnaryReactor* const reactor = held.Await();

  bool all_ended = false;
  std::thread drain([&] { all_ended = server->Drain(absl::InfiniteDuration()); });
  EXPECT_TRUE(testing::Await("the drain has closed the gate", [&] { return server->gate().closed(); }));
  EXPECT_EQ(server->gate().Enter().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(HealthOf(channel), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  server->SetServing(true);  // too late: draining is for good
  EXPECT_EQ(HealthOf(channel), grpc::health::v1::HealthCheckResponse::NOT_SERVING);

  if (reactor != nullptr) reactor->Finish(grpc::Status::OK);
  *pass = DrainGate::Pass();
  drain.join();
  client.join();
  EXPECT_TRUE(all_ended);
  EXPECT_TRUE(answer.ok()) << answer;
}

TEST(RpcServer, DrainCancelsWhatDoesNotEndInTime) {
  Mutex mu;
  grpc::ServerUnaryReactor* held = nullptr;
  CondVar changed;
  // Ends when it is cancelled, as all our calls do.
  struct Reactor final : grpc::ServerUnaryReactor {
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };
  class Service final : public v1::Inference::CallbackService {
   public:
    explicit Service(std::function<void(grpc::ServerUnaryReactor*)> started) : started_(std::move(started)) {}
    grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext*, const v1::ListModelsRequest*,
                                         v1::ListModelsResponse*) override {
      auto* const reactor = new Reactor;
      started_(reactor);
      return reactor;
    }

   private:
    std::function<void(grpc::ServerUnaryReactor*)> started_;
  } service([&](grpc::ServerUnaryReactor* reactor) {
    MutexLock lock(mu);
    held = reactor;
    changed.NotifyAll();
  });
  const auto server = testing::StartServer(service);
  auto pass = server->gate().Enter();
  absl::Status answer;
  std::thread client([&] { answer = testing::CallListModels(MakeChannel(server->address())); });
  {
    MutexLock lock(mu);
    testing::ChangeWait wait("the call has come");
    while (held == nullptr) {
      if (!wait.Next(mu, changed)) break;
    }
  }
  EXPECT_FALSE(server->Drain(absl::ZeroDuration()));
  client.join();
  EXPECT_FALSE(answer.ok());
}

}  // namespace
}  // namespace runahead
