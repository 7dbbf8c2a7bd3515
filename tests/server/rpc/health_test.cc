#include "server/rpc/health.h"

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/rpc/loopback.h"
#include "tests/testing/connected_channel.h"

namespace runahead {
namespace {

namespace health = grpc::health::v1;
using Serving = health::HealthCheckResponse;
using ::testing::HasSubstr;

// One Watch stream.
class Watching {
 public:
  Watching(health::Health::Stub& stub, const std::string& name) {
    SetTimeout(context_, absl::Seconds(30));
    health::HealthCheckRequest request;
    request.set_service(name);
    reader_ = stub.Watch(&context_, request);
  }
  // Nothing when the stream has ended.
  Serving::ServingStatus Next() {
    Serving response;
    return reader_->Read(&response) ? response.status() : Serving::UNKNOWN;
  }
  grpc::Status End() { return reader_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<Serving>> reader_;
};

class HealthTest : public ::testing::Test {
 protected:
  absl::StatusOr<Serving::ServingStatus> Check(const std::string& name) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    health::HealthCheckRequest request;
    request.set_service(name);
    Serving response;
    const absl::Status status = FromGrpcStatus(stub_->Check(&context, request, &response));
    if (!status.ok()) return status;
    return response.status();
  }

  testing::FakeInference service_{testing::FinishAtOnce};
  const std::unique_ptr<RpcServer> server_ = testing::StartServer(service_);
  const std::unique_ptr<health::Health::Stub> stub_ = health::Health::NewStub(testing::Connected(MakeChannel(server_->address())));
};

TEST_F(HealthTest, KnowsItsNamesAndTheEmptyOne) {
  for (const char* name : {"", "runahead.test"}) {
    server_->SetServing(false);
    EXPECT_EQ(*Check(name), Serving::NOT_SERVING);
    server_->SetServing(true);
    EXPECT_EQ(*Check(name), Serving::SERVING);
  }
  const absl::Status unknown = Check("nobody").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("\"nobody\""));
}

TEST_F(HealthTest, WatchSaysWhatIsAndEachChangeUntilItDrains) {
  Watching server(*stub_, ""), service(*stub_, "runahead.test");
  for (Watching* const watching : {&server, &service}) EXPECT_EQ(watching->Next(), Serving::NOT_SERVING);
  server_->SetServing(true);
  for (Watching* const watching : {&server, &service}) EXPECT_EQ(watching->Next(), Serving::SERVING);
  server_->SetServing(true);  // no change: nothing is said of it
  std::thread drain([&] { server_->Drain(absl::Seconds(30)); });
  for (Watching* const watching : {&server, &service}) {
    EXPECT_EQ(watching->Next(), Serving::NOT_SERVING);
    EXPECT_EQ(watching->Next(), Serving::UNKNOWN) << "the server has ended";
  }
  drain.join();
}

TEST_F(HealthTest, WatchOfAnUnknownNameGoesOn) {
  Watching watching(*stub_, "nobody");
  EXPECT_EQ(watching.Next(), Serving::SERVICE_UNKNOWN);
  server_->SetServing(true);
  watching.Cancel();
  EXPECT_EQ(watching.Next(), Serving::UNKNOWN);
  EXPECT_EQ(watching.End().error_code(), grpc::StatusCode::CANCELLED);
}

// 64 KiB is more than any name has.
TEST_F(HealthTest, RefusesALongMessage) {
  const absl::Status refused = Check(std::string(70'000, 'a')).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("it may have 65536"));
}

TEST_F(HealthTest, WatchesAreLimitedAndConnectionsHaveTheirShare) {
  std::deque<Watching> greedy;
  for (size_t i = 0; i < HealthService::kMostWatches; ++i) greedy.emplace_back(*stub_, "");
  for (Watching& watching : greedy) EXPECT_EQ(watching.Next(), Serving::NOT_SERVING);
  Watching more(*stub_, "");
  EXPECT_EQ(more.Next(), Serving::UNKNOWN);
  EXPECT_EQ(more.End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto others = health::Health::NewStub(testing::Connected(MakeChannel(server_->address())));
  Watching honest(*others, "");
  EXPECT_EQ(honest.Next(), Serving::NOT_SERVING) << "in place of one of the many";
  server_->SetServing(true);
  EXPECT_EQ(honest.Next(), Serving::SERVING);
  greedy.front().Cancel();
  EXPECT_EQ(greedy.front().End().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace runahead
