// The port of a worker's links, as a firewall's rules count on it, with real processes.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using testing::ServingProcess;

class LinkPortTest : public ::testing::Test {
 protected:
  std::unique_ptr<ServingProcess> Worker(int link_port, const std::string& role = "prefill") {
    return std::make_unique<ServingProcess>(std::vector<std::string>{
        RUNAHEAD_WORKER, "--role", role, "--threads", "1", "--model", model_, absl::StrCat("--link-port=", link_port)});
  }

  const std::string model_ = WriteSynthetic(SyntheticModel(), "link_port");
};

std::optional<v1::Capabilities> Ask(v1::Worker::Stub& worker) {
  grpc::ClientContext context;
  v1::Capabilities capabilities;
  if (!worker.GetCapabilities(&context, {}, &capabilities).ok()) return std::nullopt;
  return capabilities;
}

// As a router that comes, is answered, and is gone.
void ServeAnEpoch(v1::Worker::Stub& worker, const v1::Capabilities& now) {
  grpc::ClientContext context;
  const auto stream = worker.Control(&context);
  v1::ControlCommand hello, ping;
  hello.mutable_hello()->set_router_incarnation(1);
  hello.mutable_hello()->set_worker_incarnation(now.incarnation());
  hello.mutable_hello()->set_worker_epoch(now.epoch());
  ping.mutable_ping();
  v1::ControlReport report;
  EXPECT_TRUE(stream->Write(hello) && stream->Write(ping) && stream->Read(&report));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(LinkPortTest, IsTheSameInEveryEpochAndRefusedWhereItIsTaken) {
  const auto any = Worker(0);
  ASSERT_FALSE(any->address.empty()) << any->process.err();
  const auto stub_of = [](const ServingProcess& process) {
    return v1::Worker::NewStub(grpc::CreateChannel(process.address, grpc::InsecureChannelCredentials()));
  };
  const std::string taken = Ask(*stub_of(*any))->link_address();
  const int port = std::stoi(taken.substr(taken.rfind(':') + 1));
  for (const char* role : {"prefill", "decode", "both"}) {
    const auto second = Worker(port, role);
    EXPECT_EQ(second->process.Wait(), 1) << role << second->process.err();
    EXPECT_THAT(second->process.err(), HasSubstr(absl::StrCat("link_port: cannot listen on ", taken)));
  }

  any->process.Signal(SIGTERM);
  EXPECT_EQ(any->process.Wait(), 0);
  const auto worker = Worker(port);
  ASSERT_FALSE(worker->address.empty()) << worker->process.err();
  const auto stub = stub_of(*worker);
  for (uint32_t epoch = 0; epoch < 3; ++epoch) {
    std::optional<v1::Capabilities> now;
    ASSERT_TRUE(Eventually([&] { return (now = Ask(*stub)) && now->epoch() == epoch; })) << worker->process.err();
    EXPECT_EQ(now->link_address(), absl::StrCat("127.0.0.1:", port));
    ServeAnEpoch(*stub, *now);
  }
}

}  // namespace
}  // namespace runahead
